"""``coordinator.toml``: the settings of a federation's operator."""

from pathlib import Path

from pydantic import Field

from pacdp.config import Count, Real, Settings, Whole
from pacdp.keys import PublicKeys


class CoordinatorSettings(Settings):
    """The settings of a coordinator. Paths are relative to the folder of the file."""

    plan: Path = Field(description="The plan, which every site has accepted.")
    key: Path = Field(description="The file with the coordinator's private key.")
    sites: dict[str, PublicKeys] = Field(
        description="The public key of each client of the plan, in hexadecimal digits, or a list "
        "of several while it is being replaced."
    )
    log: Path = Field(description="The log of the run, from which it is resumed.")
    socket: Path = Field(
        description="The Unix socket for relays, which fetch broadcasts and deliver answers."
    )
    results: Path = Field(description="The folder for the model and the results.")
    minimum: Count = Field(
        1, description="Replies that a round needs; all of them if fewer clients are asked."
    )
    deadline: Real = Field(
        300.0,
        gt=0,
        description="Seconds after which a round is closed if it has enough replies.",
    )
    evaluation: Path | None = Field(
        None, description="Public test records (.csv or .npz) on which the model is evaluated."
    )
    initial: Path | None = Field(
        None,
        description="The initial model (.safetensors); default: initialised from the plan's seed.",
    )
    modules: dict[str, str] = Field(
        {},
        description="Plug-ins of the plan, each with its file's SHA-256; the same as at the sites.",
    )
    peers: tuple[Whole, ...] = Field(
        (), description="IDs of the users that may use the socket, besides the coordinator's own."
    )
