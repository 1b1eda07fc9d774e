"""``pacdp fit`` and ``pacdp curve show|eval|plot|compare``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from pacdp import formatting
from pacdp.cli import options
from pacdp.cli.options import Changes, Name, Profile
from pacdp.cli.output import print_json, print_rows
from pacdp.cli.progress import bar, waiting
from pacdp.errors import InputError

if TYPE_CHECKING:
    from pacdp.curve import Curve
    from pacdp.experiments import Experiment
    from pacdp.offline import Cell, Setting
    from pacdp.offline.grid import Worker

app = typer.Typer(no_args_is_help=True, help="Look at curves F(ε), and compare them.")

File = Annotated[Path, typer.Argument(metavar="FILE", help="A curve that pacdp fit has written.")]


def fit_command(
    name: Name,
    out: Annotated[Path, typer.Option(help="Where the curve is written.")] = Path("curve.json"),
    proxy: Annotated[
        str | None, typer.Option(help="Another proxy: a ready one, a data set or a folder.")
    ] = None,
    profile: Profile = None,
    changes: Changes = None,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Train on a Ray cluster; 'local' starts one here."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a grid that was stopped.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Simulate training on public data over budgets and bounds, and fit F(ε)."""
    from pacdp.experiments import read_experiment
    from pacdp.experiments.offline import setting_for

    more = [] if proxy is None else [f"offline.proxy={proxy}"]
    # It may name the very curve that is to be made.
    experiment = read_experiment(
        name, profile=profile, changes=[*(changes or []), *more], curves=False
    )
    scores = out.with_name(f"{out.name}.scores.jsonl")
    if out.exists() and not resume:
        raise InputError(f"--out {out}: exists already, must be a new file (or use --resume)")
    if scores.exists() and not resume:
        raise InputError(f"{scores}: a stopped fit is there; use --resume, or remove it")
    if not out.parent.is_dir():
        raise InputError(f"--out {out}: its folder does not exist")
    with waiting() as making:
        setting = setting_for(experiment, observe=making)
    curve = fitted(experiment, setting, scores=scores, cluster=cluster)
    curve.save(out)
    scores.unlink(missing_ok=True)
    if as_json:
        print_json({"file": str(out), **_summary(curve)})
        return
    _print(curve)
    typer.echo(f"curve: {out}")


def fitted(
    experiment: "Experiment",
    setting: "Setting",
    *,
    scores: Path | None = None,
    cluster: str | None = None,
) -> "Curve":
    """The curve of an experiment, with a bar for who waits."""
    from pacdp.offline import fit_curve
    from pacdp.offline.grid import Kept, in_process

    offline = experiment.offline
    worker: Worker = in_process
    if cluster is not None:
        from pacdp.cluster import on_ray

        worker = on_ray(cluster)
    budgets, bounds = (len(offline.axis(axis)) for axis in ("budgets", "bounds"))
    # And the fresh seeds on which regret is measured.
    total = budgets * (bounds + 2) * offline.seeds
    kept = Kept.open(scores, setting)
    with bar(f"fitting F on {setting.proxy.data.name}", total) as (progress, task):

        def observe(cell: "Cell", score: float) -> None:
            progress.advance(task)

        progress.advance(task, len(kept.scores))
        return fit_curve(setting, offline, kept=kept, worker=worker, observe=observe)


@app.command("show")
def show_command(file: File, as_json: options.Json = False) -> None:
    """What a curve says, and what it was made from."""
    from pacdp.curve import Curve

    curve = Curve.load(file)
    if as_json:
        print_json(_summary(curve))
        return
    _print(curve)


@app.command("eval")
def eval_command(
    file: File,
    epsilon: Annotated[list[float], typer.Option(help="A budget; may be given several times.")],
    as_json: options.Json = False,
) -> None:
    """Which bound a budget asks for, and what accuracy it buys on the proxy."""
    from pacdp.curve import Curve

    curve = Curve.load(file)
    low, high = curve.domain
    rows = [
        {
            "epsilon": value,
            "bound": curve(value),
            "expected": curve.expected(value),
            "metric": curve.evidence.get("metric"),
            "clamped": not low <= value <= high,
        }
        for value in epsilon
    ]
    if as_json:
        print_json({"file": str(file), "values": rows, **_terms(curve)})
        return
    table = Table(title=_title(curve))
    for heading in ("ε", "C = F(ε)", f"expected {curve.evidence.get('metric', '')} on the proxy"):
        table.add_column(heading, justify="right")
    for row in rows:
        note = " (outside its domain: that of the nearest end)" if row["clamped"] else ""
        table.add_row(
            f"{row['epsilon']:g}{note}", f"{row['bound']:.4g}", _score(curve, row["expected"])
        )
    Console().print(table)


@app.command("plot")
def plot_command(
    file: File,
    out: Annotated[Path, typer.Option(help="A new picture: .png, .svg or .pdf.")],
) -> None:
    """Draw the matrix P, the choices and the families."""
    from pacdp.curve import Curve
    from pacdp.report.figures.curve import draw_curve

    curve = Curve.load(file)
    options.picture(out)
    draw_curve(curve).savefig(out, dpi=150)
    typer.echo(f"picture: {out}")


@app.command("compare")
def compare_command(
    files: Annotated[list[Path], typer.Argument(metavar="FILE FILE...", help="Two or more.")],
    as_json: options.Json = False,
) -> None:
    """How curves differ, and what each loses on the others' proxies."""
    from pacdp.curve import Curve
    from pacdp.curve.transfer import transfer

    if len(files) < 2:
        raise InputError("FILE: must be two or more")
    curves = {str(file): Curve.load(file) for file in files}
    rows = [
        {"curve": one, "on": other, **vars(found)}
        for one in curves
        for other in curves
        if one != other
        for found in transfer(curves[one], curves[other])
    ]
    if as_json:
        print_json({"rows": rows})
        return
    table = Table(title="What a curve loses on another's proxy, against that one's own")
    for heading in ("curve", "on the proxy of", "ε", "its C", "own C", "lost"):
        table.add_column(heading, justify="right" if len(heading) < 6 else "left")
    for row in rows:
        on = curves[row["on"]]
        table.add_row(
            *(Path(row["curve"]).name, Path(row["on"]).name, f"{row['epsilon']:.3g}"),
            *(f"{row['bound']:.3g}", f"{row['own']:.3g}"),
            _score(on, row["lost"]),
        )
    Console().print(table)


def _terms(curve: "Curve") -> dict[str, Any]:
    plan = curve.evidence.get("plan", {})
    return {
        "adjacency": plan.get("adjacency"),
        "delta": plan.get("delta"),
        "unit": curve.evidence.get("unit", "record"),
    }


def _title(curve: "Curve") -> str:
    plan = curve.evidence.get("plan")
    if plan is None:
        return f"{curve.family}, of unknown origin"
    unit = curve.evidence.get("unit", "record")
    return f"ε at {formatting.terms(plan['delta'], plan['adjacency'], unit)}"


def _score(curve: "Curve", value: float | None) -> str:
    if value is None:
        return "-"
    accuracy = curve.evidence.get("metric") == "accuracy"
    return f"{100 * value:.1f} %" if accuracy else f"{value:.4g}"


def _summary(curve: "Curve") -> dict[str, Any]:
    """All but the matrix."""
    evidence = {key: value for key, value in curve.evidence.items() if key != "scores"}
    return {
        "family": curve.family,
        "coefficients": list(curve.coefficients),
        "domain": list(curve.domain),
        **evidence,
    }


def _print(curve: "Curve") -> None:
    evidence = curve.evidence
    shown = ", ".join(f"{value:.4g}" for value in curve.coefficients)
    rows = {"F": f"{curve.family} [{shown}] for ε from {curve.domain[0]:g} to {curve.domain[1]:g}"}
    if not evidence.get("scores"):
        print_rows(rows | {"made from": "nothing that is written down"})
        return
    proxy = evidence["proxy"]
    rows["proxy"] = f"{proxy['name']} for {proxy['stands_for']}: {proxy['made_by']}"
    rows["grid"] = (
        f"{len(evidence['budgets'])} budgets x {len(evidence['bounds'])} bounds x "
        f"{len(evidence['seeds'])} seeds, C* by {evidence['rule']}"
    )
    for family, found in evidence["families"].items():
        rows[family] = (
            f"refused: {found['refused']}"
            if found["coefficients"] is None
            else f"R² {found['r_squared']:.4f}, error of ln C at left-out budgets "
            + ("none: it breaks" if found["left_out"] is None else f"{found['left_out']:.3f}")
        )
    if evidence["outliers"]:
        rows["left out"] = ", ".join(f"ε = {value:.3g}" for value in evidence["outliers"])
    for other in evidence.get("rates", ()):
        rows[f"lr {other['lr']:g}"] = (
            f"lr·C* {min(other['product']):.3g} to {max(other['product']):.3g}, mean "
            f"{evidence['metric']} {_score(curve, sum(other['scores']) / len(other['scores']))}"
        )
    edges = [
        budget
        for budget, choice in zip(evidence["budgets"], evidence["choices"], strict=True)
        if choice["edge"]
    ]
    if edges:
        said = ", ".join(f"{value:.3g}" for value in edges)
        rows["warning"] = f"C* lies at the edge of the bounds at ε = {said}: widen the grid"
    print_rows(rows)
    table = Table(
        title=_title(curve),
        caption="regret: what F loses against the best bound of the grid, on fresh seeds",
    )
    for heading in ("ε", "C*", "as good", "F(ε)", "expected", "regret ± s.e."):
        table.add_column(heading, justify="right")
    everything = zip(
        *(evidence["budgets"], evidence["choices"], evidence["expected"], evidence["regret"]),
        strict=True,
    )
    for budget, choice, expected, lost in everything:
        percent = 100 if evidence["metric"] == "accuracy" else 1
        table.add_row(
            f"{budget:.3g}",
            f"{choice['bound']:.3g}",
            f"{choice['low']:.2g} to {choice['high']:.2g}",
            f"{curve(budget):.3g}",
            _score(curve, expected),
            f"{percent * lost['regret']:.2f} ± {percent * lost['standard_error']:.2f}",
        )
    Console().print(table)
