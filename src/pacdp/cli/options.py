"""Options that several commands share.

Nothing heavy is imported here: ``pacdp --help`` must not wait for it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from pacdp.errors import InputError

PUBLISHED = "published"
# Tests compare these with the package.
ADJACENCIES = "zero-out|replace-one"
SCOPES = "total|per-release"
ACCOUNTANTS = "exact|rdp|paper-rdp|pld|basic"
DEFAULT_DELTA, DEFAULT_ADJACENCY, DEFAULT_SCOPE = 1e-5, "zero-out", "total"

Delta = Annotated[float, typer.Option(help="δ of the guarantee, in (0, 1).")]
AdjacencyName = Annotated[
    str,
    typer.Option(
        "--adjacency",
        metavar=ADJACENCIES,
        help="What the guarantee compares: one record replaced by a null record (zero-out) or by "
        "any other record (replace-one).",
    ),
]
AccountantName = Annotated[
    str | None,
    typer.Option(
        "--accountant",
        metavar=ACCOUNTANTS,
        help="How ε is computed. Default: exact, or pld if records are Poisson-sampled.",
    ),
]
ScopeName = Annotated[
    str,
    typer.Option(
        "--scope",
        metavar=SCOPES,
        help="What ε covers: the whole training, or each release alone (as in the paper).",
    ),
]
SamplingRate = Annotated[
    float | None,
    typer.Option(
        help="Poisson sampling rate q of the records, in (0, 1]. The sample must stay hidden from "
        "the server."
    ),
]
Name = Annotated[
    str,
    typer.Argument(
        metavar="EXPERIMENT",
        help="Name of a built-in experiment (e.g. heart-personalised) or path of a TOML file.",
    ),
]
Profile = Annotated[
    str | None,
    typer.Option(
        metavar="smoke|desk|full",
        help="Size of the experiment: smoke, desk or full; by default as written.",
    ),
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a setting, e.g. training.rounds=5. Repeatable.",
    ),
]
Seed = Annotated[
    int, typer.Option(help="Random seed for initialisation, noise, sampling and budget assignment.")
]
MethodName = Annotated[
    str | None,
    typer.Option(
        "--method",
        metavar="NAME",
        help="Method to use instead of the experiment's, e.g. fixed:clipping_bound=5 or "
        "my_module:MyMethod.",
    ),
]
PlanName = Annotated[
    str,
    typer.Option(
        "--configuration",
        metavar="published|FILE",
        help="'published' for the experiment's own settings, or a file written by pacdp tune.",
    ),
]
Device = Annotated[str, typer.Option(help="Device for tensors: cpu, cuda or mps.")]
Json = Annotated[bool, typer.Option("--json", metavar="", help="Print one JSON object.")]


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


def loading(plan: str, profile: str | None, changes: Sequence[str] | None) -> dict[str, Any]:
    """The arguments of :func:`pacdp.load_experiment` that these options stand for."""
    configuration = None if plan == PUBLISHED else Path(plan)
    return {"profile": profile, "changes": changes or [], "configuration": configuration}


def configurations(files: Sequence[str], methods: Sequence[str]) -> dict[str, str]:
    """Which method has which file of a tuned configuration; the others run as published."""
    from pacdp.tuning import TunedConfiguration

    found: dict[str, str] = {}
    for file in files:
        if file == PUBLISHED:
            continue
        method = TunedConfiguration.load(Path(file)).method
        if method not in methods:
            raise InputError(f"--configuration {file}: is for {method}, must be among --methods")
        if method in found:
            raise InputError(f"--configuration {file}: is the second for {method}, must be one")
        found[method] = file
    return found


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
    from pacdp.validation import require_member

    require_member("--out, its ending", path.suffix, (".png", ".svg", ".pdf"))
    return new_file(path)


def new_file(path: Path) -> Path:
    """A path at which nothing is yet, in a folder that is there."""
    from pacdp.storage import require_new_file

    return require_new_file(path)
