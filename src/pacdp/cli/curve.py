"""``pacdp fit`` and ``pacdp curve show|eval|plot|compare``."""

from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from pacdp import formatting
from pacdp.cli import options
from pacdp.cli.options import Changes, Name, Profile
from pacdp.cli.output import print_json, print_rows, print_table
from pacdp.cli.progress import show_progress
from pacdp.errors import InputError

if TYPE_CHECKING:
    from pacdp.curve import Curve
    from pacdp.offline.grid import Worker

app = typer.Typer(no_args_is_help=True, help="Inspect and compare curves F(ε).")

File = Annotated[Path, Argument(metavar="FILE", help="A curve file written by pacdp fit.")]


def fit_command(
    name: Name,
    out: Annotated[Path, Option(help="File to write the curve to.")] = Path("curve.json"),
    proxy: Annotated[
        str | None,
        Option(
            help="Proxy to use instead of the experiment's: a built-in one, a data set or a folder."
        ),
    ] = None,
    profile: Profile = None,
    changes: Changes = None,
    cluster: Annotated[
        str | None,
        Option(
            metavar="ADDRESS", help="Train on a Ray cluster; 'local' starts one on this machine."
        ),
    ] = None,
    resume: Annotated[bool, options.flag("--resume", "Continue an interrupted fit.")] = False,
    as_json: options.Json = False,
) -> None:
    """Simulate training on public data over a grid of budgets and clipping bounds, and fit F(ε)."""
    from pacdp import api
    from pacdp.offline import train_in_process

    changed = [*(changes or []), *([] if proxy is None else [f"offline.proxy={proxy}"])]
    experiment = api.load_experiment(name, profile=profile, changes=changed, curves=False)
    scores = out.with_name(f"{out.name}.scores.jsonl")
    if out.exists() and not resume:
        raise InputError(f"--out {out}: exists already, must be a new file (or use --resume)")
    if scores.exists() and not resume:
        raise InputError(f"{scores}: belongs to an interrupted fit; use --resume, or remove it")
    if not out.parent.is_dir():
        raise InputError(f"--out {out}: its folder does not exist")
    worker: Worker = train_in_process
    if cluster is not None:
        from pacdp.cluster import on_ray

        worker = on_ray(cluster)
    with show_progress() as progress:
        curve = api.fit(experiment, scores=scores, worker=worker, progress=progress)
    curve.save(out)
    scores.unlink(missing_ok=True)
    if as_json:
        print_json({"file": str(out), **_summarise(curve)})
        return
    _print_curve(curve)
    typer.echo(f"curve: {out}")


@app.command("show")
def show_command(file: File, as_json: options.Json = False) -> None:
    """Show a curve and the evidence it was fitted to."""
    from pacdp.curve import Curve

    curve = Curve.load(file)
    print_json(_summarise(curve)) if as_json else _print_curve(curve)


@app.command("eval")
def eval_command(
    file: File,
    epsilon: Annotated[list[float], Option(help="Budget ε. Repeatable.")],
    as_json: options.Json = False,
) -> None:
    """Show the clipping bound for a budget, and the score to expect on the proxy."""
    from pacdp.curve import Curve

    curve = Curve.load(file)
    evidence = curve.evidence
    metric = evidence.metric
    low, high = curve.domain
    values: list[dict[str, Any]] = [
        {
            "epsilon": value,
            "bound": curve(value),
            "expected": curve.expected_score(value),
            "metric": metric or None,
            "clamped": not low <= value <= high,
        }
        for value in epsilon
    ]
    if as_json:
        guarantee = {name: evidence.plan.get(name) for name in ("adjacency", "delta")}
        print_json({"file": str(file), "values": values, **guarantee, "unit": evidence.unit})
        return
    rows = [
        (
            f"{value['epsilon']:g}{' (clamped to the domain)' if value['clamped'] else ''}",
            f"{value['bound']:.4g}",
            formatting.format_score(value["expected"], metric),
        )
        for value in values
    ]
    print_table(_title(curve), ("ε", "C = F(ε)", f"expected {metric} on the proxy"), rows)


@app.command("plot")
def plot_command(
    file: File,
    out: options.PicturePath,
) -> None:
    """Plot the score matrix P, the selected bounds and the fitted families."""
    from pacdp.curve import Curve
    from pacdp.reporting.figures.curve import draw_curve

    curve = Curve.load(file)
    options.require_new_picture(out)
    draw_curve(curve).savefig(out, dpi=150)
    typer.echo(f"picture: {out}")


@app.command("compare")
def compare_command(
    files: Annotated[list[Path], Argument(metavar="FILE FILE...", help="Two or more curve files.")],
    as_json: options.Json = False,
) -> None:
    """Show how curves differ, and what each one loses on the others' proxies."""
    from pacdp.curve import Curve
    from pacdp.curve.transfer import measure_transfer

    if len(files) < 2:
        raise InputError("FILE: must be two or more")
    curves = {str(file): Curve.load(file) for file in files}
    losses = [
        (file, other, loss)
        for file, other in permutations(curves, 2)
        for loss in measure_transfer(curves[file], curves[other])
    ]
    if as_json:
        rows = [{"curve": file, "on": other, **vars(loss)} for file, other, loss in losses]
        print_json({"rows": rows})
        return
    print_table(
        "Score that a curve loses on another proxy, against that proxy's own curve",
        ("curve", "on the proxy of", "ε", "its C", "own C", "lost"),
        [
            (
                *(Path(file).name, Path(other).name, f"{loss.epsilon:.3g}"),
                *(f"{loss.bound:.3g}", f"{loss.own:.3g}"),
                formatting.format_score(loss.lost, curves[other].evidence.metric),
            )
            for file, other, loss in losses
        ],
    )


def _title(curve: "Curve") -> str:
    plan = curve.evidence.plan
    if not plan:
        return f"{curve.family}, of unknown origin"
    return f"ε at {formatting.format_terms(plan['delta'], plan['adjacency'], curve.evidence.unit)}"


def _summarise(curve: "Curve") -> dict[str, Any]:
    """Return the content of a curve file without the score matrix."""
    content = curve.model_dump(mode="json")
    evidence = content.pop("evidence")
    return content | {key: value for key, value in evidence.items() if key != "scores"}


def _print_curve(curve: "Curve") -> None:
    evidence = curve.evidence
    coefficients = ", ".join(f"{value:.4g}" for value in curve.coefficients)
    low, high = curve.domain
    rows = {"F": f"{curve.family} [{coefficients}] for ε from {low:g} to {high:g}"}
    if not evidence.scores:
        print_rows(rows | {"evidence": "none"})
        return
    proxy, metric = evidence.proxy, evidence.metric
    rows["proxy"] = f"{proxy.name} for {proxy.stands_for}: {proxy.made_by}"
    rows["grid"] = (
        f"{len(evidence.budgets)} budgets x {len(evidence.bounds)} bounds x "
        f"{len(evidence.seeds)} seeds, C* by {evidence.rule}"
    )
    for family, fit in evidence.families.items():
        left_out = "none: cannot be fitted" if fit.left_out is None else f"{fit.left_out:.3f}"
        rows[family] = (
            f"refused: {fit.refused}"
            if fit.coefficients is None
            else f"R² {fit.r_squared:.4f}, error of ln C at left-out budgets {left_out}"
        )
    if evidence.outliers:
        rows["left out"] = ", ".join(f"ε = {value:.3g}" for value in evidence.outliers)
    for other in evidence.rates:
        mean = formatting.format_score(sum(other.scores) / len(other.scores), metric)
        low, high = min(other.product), max(other.product)
        rows[f"lr {other.lr:g}"] = f"lr·C* {low:.3g} to {high:.3g}, mean {metric} {mean}"
    results = list(
        zip(evidence.budgets, evidence.choices, evidence.expected, evidence.regret, strict=True)
    )
    edges = ", ".join(f"{budget:.3g}" for budget, choice, *_ in results if choice.edge)
    if edges:
        rows["warning"] = f"C* lies at the edge of the bounds at ε = {edges}: widen the grid"
    print_rows(rows)
    percent = 100 if metric == "accuracy" else 1
    print_table(
        _title(curve),
        ("ε", "C*", "as good", "F(ε)", "expected", "regret ± s.e."),
        [
            (
                *(f"{budget:.3g}", f"{choice.bound:.3g}"),
                *(f"{choice.low:.2g} to {choice.high:.2g}", f"{curve(budget):.3g}"),
                formatting.format_score(expected, metric),
                f"{percent * lost.regret:.2f} ± {percent * lost.standard_error:.2f}",
            )
            for budget, choice, expected, lost in results
        ],
        caption="regret: score that F loses against the best bound of the grid, on fresh seeds",
    )
