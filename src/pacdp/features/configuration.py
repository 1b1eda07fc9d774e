"""The configuration of public features."""

from typing import Literal, Self

from pydantic import Field, model_validator

from pacdp.config import Count, Real, Settings, Whole

MOST_DIMENSIONS = 512

Track = Literal["public", "private-only"]


class Features(Settings):
    """A public map from records to the features that a model is trained on.

    It is fixed before any private record is read, so it costs no privacy. Without ``public`` no
    one's records go into it: extractors that must learn do so from generated images.

    >>> Features(name="gradients").track
    'private-only'
    >>> Features(name="network", public="cifar100").track
    'public'
    """

    name: Literal["plain", "gradients", "scattering", "patches", "combined", "network"] = Field(
        "plain",
        description="plain (the values themselves), gradients, scattering, patches, combined "
        "(gradients and patches) or network.",
    )
    dimension: Count | None = Field(
        None,
        le=MOST_DIMENSIONS,
        description="Number of principal directions; by default all, but at most 512.",
    )
    whitening: Real = Field(
        0.0, ge=0, le=1, description="0 keeps the variances of the directions, 1 makes them equal."
    )
    public: str | None = Field(
        None,
        description="Public data: cifar10, cifar100 or handwriting; by default generated images.",
    )
    seed: Whole = Field(
        0, ge=0, lt=2**63, description="Seed of the generated images and of training."
    )
    settings: dict[str, Real] = Field(
        {}, description="Settings of the extractor, such as epochs or width."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.name == "network" and self.public is None:
            raise ValueError("a network must have public data to be trained on")
        if self.whitening and self.dimension is None:
            raise ValueError(f"whitening = {self.whitening:g}: must have a dimension")
        return self

    @property
    def track(self) -> Track:
        """Whether public records went into it."""
        return "private-only" if self.public is None else "public"
