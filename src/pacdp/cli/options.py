"""Options that several commands share, in one wording."""

from pathlib import Path
from typing import Annotated

import typer

from pacdp.errors import InputError
from pacdp.privacy import ACCOUNTANTS, Adjacency, Scope
from pacdp.validation import member


def _choices(names: list[str]) -> str:
    return "|".join(names)


Delta = Annotated[float, typer.Option(help="δ of the guarantee, in (0, 1).")]
AdjacencyName = Annotated[
    str,
    typer.Option(
        "--adjacency",
        metavar=_choices([a.value for a in Adjacency]),
        help="Which data sets are neighbours: a record against a null record, or any other one.",
    ),
]
AccountantName = Annotated[
    str | None,
    typer.Option(
        "--accountant",
        metavar=_choices(list(ACCOUNTANTS)),
        help="Default: exact; pld where records are Poisson-sampled.",
    ),
]
ScopeName = Annotated[
    str,
    typer.Option(
        "--scope",
        metavar=_choices([s.value for s in Scope]),
        help="What ε covers: the whole training, or each release alone (as the paper reads it).",
    ),
]
SamplingRate = Annotated[
    float | None,
    typer.Option(help="Poisson sampling rate q of the records, unseen by the server; in (0, 1]."),
]
Name = Annotated[
    str, typer.Argument(metavar="EXPERIMENT", help="A shipped experiment, or a TOML file.")
]
Profile = Annotated[
    str | None, typer.Option(metavar="smoke|desk|full", help="One of the experiment's sizes.")
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, as training.rounds=5."),
]
Device = Annotated[str, typer.Option(help="Where tensors live: cpu, cuda, mps.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def assignments(option: str, texts: list[str]) -> dict[str, float]:
    """Several of ``KEY=VALUE``; a key that comes twice is refused.

    >>> assignments("--set", ["alpha=0.5"])
    {'alpha': 0.5}
    """
    pairs = [assignment(option, text) for text in texts]
    if len(dict(pairs)) != len(pairs):
        raise InputError(f"{option}: a key comes twice, must come once")
    return dict(pairs)


def assignment(option: str, text: str) -> tuple[str, float]:
    """The name and the number of ``KEY=VALUE``.

    >>> assignment("--set", "alpha=0.5")
    ('alpha', 0.5)
    """
    name, sign, value = text.partition("=")
    try:
        if not sign or not name.strip():
            raise ValueError
        return name.strip().replace("-", "_"), float(value)
    except ValueError:
        raise InputError(f"{option} {text!r}: must be KEY=VALUE with a number") from None


def sizes(profile: str | None, changes: list[str]) -> list[str]:
    """The options that say which profile was taken and what was changed.

    >>> sizes("smoke", ["training.rounds=2"])
    ['--profile', 'smoke', '--set', 'training.rounds=2']
    """
    chosen = [] if profile is None else ["--profile", profile]
    return [*chosen, *(word for one in changes for word in ("--set", one))]


def device(name: str) -> str:
    """The device, if it is there."""
    import torch

    try:
        if name.split(":")[0] not in ("cpu", "cuda", "mps"):
            raise RuntimeError("must be cpu, cuda or mps")
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"--device {name}: {str(error).splitlines()[0]}") from None
    return name


def picture(path: Path) -> Path:
    """A path for a new picture, of a kind that can be drawn."""
    member("--out, its ending", path.suffix, (".png", ".svg", ".pdf"))
    return new_file(path)


def new_file(path: Path) -> Path:
    """A path at which nothing is yet, in a folder that is there."""
    if path.exists():
        raise InputError(f"{path}: exists already, and is not touched")
    if not path.parent.is_dir():
        raise InputError(f"{path}: its folder does not exist")
    return path
