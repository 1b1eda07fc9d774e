"""What a user decides about a training, in the words of an experiment file."""

from typing import Literal

from pydantic import Field, PositiveInt, model_validator

from pacdp.federation.budgets import Levels
from pacdp.privacy import DEFAULT_DELTA
from pacdp.settings import Settings


class Model(Settings):
    """The model, by name."""

    name: str = Field("logistic", description="logistic, mlp, cnn, resnet18, resnet34 or sequence.")
    settings: dict[str, float] = Field({}, description="Its settings, such as hidden = 16.")
    seed: int | None = Field(None, description="Of the first weights; by default the run's seed.")


class Optimiser(Settings):
    """A client's optimiser. It is made anew for each participation."""

    name: Literal["sgd", "momentum", "adam"] = Field("sgd", description="sgd, momentum or adam.")
    lr: float = Field(0.1, gt=0, allow_inf_nan=False, description="Learning rate.")
    momentum: float = Field(0.9, ge=0, lt=1, description="For momentum.")


class Training(Settings):
    """Rounds, and what a client does in one of them."""

    rounds: PositiveInt = Field(20, description="T.")
    clients_per_round: PositiveInt | Literal["all"] = Field(
        "all", description="How many are asked."
    )
    sampling: Literal["balanced", "uniform"] = Field(
        "balanced", description="Everyone equally often, or anyone (as in the paper)."
    )
    cap: float | Literal["rounds"] = Field(
        0.95,
        description="Under uniform sampling: the probability that a client is never asked more "
        'often than its noise is planned for, or "rounds" where refusal is unwanted.',
    )
    batch: PositiveInt | Literal["full"] = Field("full", description="Records in a local step.")
    local_epochs: PositiveInt | None = Field(None, description="E passes over the records a round.")
    local_steps: PositiveInt | None = Field(None, description="Or so many steps a round.")
    optimiser: Optimiser = Field(Optimiser(), description="The client's optimiser.")

    @model_validator(mode="after")
    def _checked(self) -> "Training":
        if (self.local_epochs is None) == (self.local_steps is None):
            raise ValueError("must have either local_epochs or local_steps")
        if self.cap != "rounds" and not 0 < float(self.cap) < 1:
            raise ValueError(f'cap = {self.cap}: must be in (0, 1), or "rounds"')
        return self


class Aggregation(Settings):
    """How the server combines what it gets. All of it is post-processing."""

    weights: Literal["size", "epsilon", "inverse-noise", "tempered", "inverse-variance"] = Field(
        "size", description="What a client's update counts."
    )
    optimiser: Literal["average", "momentum", "adam"] = Field(
        "average", description="What is done with the weighted mean of the updates."
    )
    lr: float = Field(1.0, gt=0, allow_inf_nan=False, description="The server's learning rate.")
    momentum: float = Field(0.9, ge=0, lt=1, description="For momentum.")
    average_last: float = Field(
        0.0,
        ge=0,
        le=1,
        description="The share of last rounds whose models are averaged at the end.",
    )


class Privacy(Settings):
    """What each client is promised."""

    epsilon: float | tuple[float, ...] | Levels = Field(
        1.0, description="ε: one number, one for each client, or levels with shares."
    )
    delta: float = Field(DEFAULT_DELTA, gt=0, lt=1, description="δ.")
    adjacency: Literal["zero-out", "replace-one"] = Field(
        "zero-out", description="Which data sets are neighbours."
    )
    scope: Literal["total", "per-release"] = Field(
        "total", description="What ε covers: the training, or each release alone (the paper)."
    )
    accountant: str | None = Field(None, description="exact unless named.")


class HotStart(Settings):
    """A first model trained on public data."""

    proxy: str | None = Field(None, description="Which ready proxy; by default the first.")
    epochs: PositiveInt = Field(20, description="Passes over the proxy.")
    batch: PositiveInt = Field(64, description="Records in a step.")
    lr: float = Field(1e-3, gt=0, allow_inf_nan=False, description="Learning rate of Adam.")
