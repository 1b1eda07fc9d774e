"""Options that several commands share.

Nothing heavy is imported here: ``pacdp --help`` must not wait for it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from pacdp.errors import InputError
from pacdp.storage import require_new_file

PUBLISHED = "published"
# Tests compare these with the package.
ADJACENCIES = "zero-out|replace-one"
SCOPES = "total|per-release"
ACCOUNTANTS = "exact|rdp|paper-rdp|pld|basic"
DEFAULT_DELTA, DEFAULT_ADJACENCY, DEFAULT_SCOPE = 1e-5, "zero-out", "total"


def flag(name: str, description: str, **settings: Any) -> Any:
    """Declare an option without a value."""
    return Option(name, metavar="", help=description, **settings)


Delta = Annotated[float, Option(help="δ of the guarantee, in (0, 1).")]
AdjacencyName = Annotated[
    str,
    Option(
        metavar=ADJACENCIES,
        help="What the guarantee compares: one record replaced by a null record (zero-out) or by "
        "any other record (replace-one).",
    ),
]
AccountantName = Annotated[
    str | None,
    Option(
        metavar=ACCOUNTANTS,
        help="How ε is computed. Default: exact, or pld if records are Poisson-sampled.",
    ),
]
ScopeName = Annotated[
    str,
    Option(
        metavar=SCOPES,
        help="What ε covers: the whole training, or each release alone (as in the paper).",
    ),
]
SamplingRate = Annotated[
    float | None,
    Option(
        help="Poisson sampling rate q of the records, in (0, 1]. The sample must stay hidden from "
        "the server."
    ),
]
Name = Annotated[
    str,
    Argument(
        metavar="EXPERIMENT",
        help="Name of a built-in experiment (e.g. heart-personalised) or path of a TOML file.",
    ),
]
Profile = Annotated[
    str | None,
    Option(
        metavar="smoke|desk|full",
        help="Size of the experiment: smoke, desk or full; by default as written.",
    ),
]
Changes = Annotated[
    list[str] | None,
    Option(
        "--set", metavar="KEY=VALUE", help="Override a setting, e.g. training.rounds=5. Repeatable."
    ),
]
Seed = Annotated[
    int, Option(help="Random seed for initialisation, noise, sampling and budget assignment.")
]
MethodName = Annotated[
    str | None,
    Option(
        metavar="NAME",
        help="Method to use instead of the experiment's, e.g. fixed:clipping_bound=5 or "
        "my_module:MyMethod.",
    ),
]
ConfigurationPath = Annotated[
    str,
    Option(
        metavar="published|FILE",
        help="'published' for the experiment's own settings, or a file written by pacdp tune.",
    ),
]
PicturePath = Annotated[
    Path, Option("--out", help="Image file: .png, .svg or .pdf; must not exist yet.")
]
Device = Annotated[str, Option(help="Device for tensors: cpu, cuda or mps.")]
Json = Annotated[bool, flag("--json", "Print one JSON object.")]


def parse_assignments(option: str, texts: Sequence[str]) -> dict[str, float]:
    """Parse several of ``KEY=VALUE``; a key that comes twice is refused.

    >>> parse_assignments("--set", ["alpha=0.5"])
    {'alpha': 0.5}
    """
    values: dict[str, float] = {}
    for text in texts:
        name, _, value = text.partition("=")
        key = name.strip().replace("-", "_")
        try:
            number = float(value)
            if not key:
                raise ValueError
        except ValueError:
            raise InputError(f"{option} {text!r}: must be KEY=VALUE with a number") from None
        if key in values:
            raise InputError(f"{option}: a key comes twice, must come once")
        values[key] = number
    return values


def command_line(command: str, name: str, options: Mapping[str, Any]) -> list[str]:
    """Return the words of a command; an option is left out if it is None, and a list repeated.

    >>> command_line("run", "heart", {"--profile": None, "--set": ["training.rounds=2"]})
    ['pacdp', 'run', 'heart', '--set', 'training.rounds=2']
    """
    words = ["pacdp", command, name]
    for option, value in options.items():
        for item in value if isinstance(value, list) else [value]:
            words += [] if item is None else [option, str(item)]
    return words


def loading(
    configuration: str, profile: str | None, changes: Sequence[str] | None
) -> dict[str, Any]:
    """Return the arguments of :func:`pacdp.load_experiment` for these options."""
    path = None if configuration == PUBLISHED else Path(configuration)
    return {"profile": profile, "changes": changes or [], "configuration": path}


def configurations(files: Sequence[str], methods: Sequence[str]) -> dict[str, str]:
    """Return the file with the tuned configuration of each method that has one."""
    from pacdp.tuning import TunedConfiguration

    by_method: dict[str, str] = {}
    for file in files:
        if file == PUBLISHED:
            continue
        method = TunedConfiguration.load(Path(file)).method
        if method not in methods:
            raise InputError(f"--configuration {file}: is for {method}, must be among --methods")
        if method in by_method:
            raise InputError(f"--configuration {file}: is the second for {method}, must be one")
        by_method[method] = file
    return by_method


def device(name: str) -> str:
    """Return the name of a device; raise InputError if there is none of that name."""
    import torch

    try:
        if name.split(":")[0] not in ("cpu", "cuda", "mps"):
            raise RuntimeError("must be cpu, cuda or mps")
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"--device {name}: {str(error).splitlines()[0]}") from None
    return name


def require_new_picture(path: Path) -> None:
    """Raise InputError if a picture cannot be written there, or something exists already."""
    from pacdp.validation import require_member

    require_member("--out, its ending", path.suffix, (".png", ".svg", ".pdf"))
    require_new_file(path)
