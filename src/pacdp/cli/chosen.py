"""Which method under which plan: what ``plan``, ``run`` and ``compare`` have in common."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pacdp.arithmetic import RUN_AGAIN
from pacdp.cli import options
from pacdp.cli.progress import waiting
from pacdp.errors import InputError

if TYPE_CHECKING:
    from pacdp.curve import Curve
    from pacdp.experiments import Experiment
    from pacdp.methods import Method
    from pacdp.tuning import Tuned

Seed = Annotated[int, typer.Option(help="Of weights, noise, sampling and who holds which budget.")]
MethodName = Annotated[
    str | None,
    typer.Option("--method", metavar="NAME", help="Another method, as fixed:clipping_bound=5."),
]
PUBLISHED = "published"
PlanName = Annotated[
    str,
    typer.Option(
        "--plan",
        metavar="published|FILE",
        help="The experiment's own settings, or what pacdp tune has chosen.",
    ),
]


def planned(
    name: str,
    *,
    plan: str,
    method: str | None,
    profile: str | None,
    changes: Sequence[str],
) -> "Experiment":
    """The experiment, under its own plan or under one that was tuned for this method."""
    from pacdp.experiments import read_experiment
    from pacdp.tuning import with_plan

    if plan == PUBLISHED:
        return read_experiment(name, profile=profile, changes=changes)
    tuned = tuned_plan(plan, changes)
    # A tuned plan brings its own curve; one that the file names may not be there.
    experiment = read_experiment(name, profile=profile, changes=changes, curves=False)
    wanted = tuned.method if method is None else split_method(method)[0]
    if wanted != tuned.method:
        raise InputError(f"--plan {plan}: was made for {tuned.method}, must be for {wanted}")
    return with_plan(experiment, tuned)


def tuned_plan(file: str, changes: Sequence[str]) -> "Tuned":
    """What pacdp tune has written; a change of what it has chosen is refused."""
    from pacdp.tuning import Tuned, overruled

    tuned = Tuned.load(Path(file))
    against = overruled(tuned, changes)
    if against is not None:
        raise InputError(f"--set {against}: --plan has chosen otherwise, must be left out")
    return tuned


def method_of(experiment: "Experiment", text: str | None, curve: "Curve | None" = None) -> "Method":
    """A method by ``NAME`` or ``NAME:key=value:key=value``, with a curve if it lacks one."""
    name, parts = split_method(experiment.method if text is None else text)
    fitted = {} if curve is None else dict.fromkeys(experiment.missing_settings(name), curve)
    return experiment.build_method(name, options.assignments("--method", parts) | fitted)


def split_method(text: str) -> tuple[str, list[str]]:
    """The name and the settings of ``NAME:key=value``; a name may be ``module:Class``.

    >>> split_method("fixed:clipping_bound=5")
    ('fixed', ['clipping_bound=5'])
    >>> split_method("pacdp.methods.fixed:Fixed")
    ('pacdp.methods.fixed:Fixed', [])
    """
    from pacdp.methods import import_method

    name, *parts = text.split(":")
    if parts and "=" not in parts[0]:
        name = f"{name}:{parts.pop(0)}"
    if not name or name.startswith(":"):
        raise InputError(f"--method {text!r}: must be NAME or NAME:KEY=VALUE")
    return import_method(name), parts


def missing_curve(
    experiment: "Experiment",
    methods: list[str | None],
    *,
    kept: Path | None = None,
    seed: int = 0,
) -> "Curve | None":
    """A curve that is fitted now, if a method needs one and the experiment has none."""
    names = [split_method(experiment.method if text is None else text)[0] for text in methods]
    if not any(experiment.missing_settings(name) for name in names):
        return None
    from pacdp.cli.curve import fit_with_progress
    from pacdp.curve import Curve
    from pacdp.experiments.offline import setting_for

    if kept is not None and kept.is_file():
        return Curve.load(kept, anew=RUN_AGAIN)
    with waiting() as making:
        proxy_task = setting_for(experiment, seed=seed, observe=making)
    typer.echo(f"no curve is given: fitting one on {proxy_task.proxy.data.name}", err=True)
    return fit_with_progress(experiment, proxy_task)


def seed_of(seed: int) -> int:
    """A seed that can be used."""
    if not 0 <= seed < 2**63:
        raise InputError(f"--seed {seed}: must be a whole number from 0 to 2^63 - 1")
    return seed
