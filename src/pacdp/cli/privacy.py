"""``pacdp account`` and ``pacdp calibrate``."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from pacdp.cli import options
from pacdp.cli.output import print_json, print_rows
from pacdp.errors import InputError

if TYPE_CHECKING:
    from pacdp.privacy import Guarantee, Release


def account_command(
    noise_multiplier: Annotated[
        list[float],
        Option(help="σ/C: standard deviation of the noise over the clipping bound. Repeatable."),
    ],
    releases: Annotated[
        list[int],
        Option(
            help="Number of releases that a record contributes to; once, or once per multiplier."
        ),
    ],
    delta: options.Delta = options.DEFAULT_DELTA,
    adjacency: options.AdjacencyName = options.DEFAULT_ADJACENCY,
    accountant: options.AccountantName = None,
    sampling_rate: options.SamplingRate = None,
    scope: options.ScopeName = options.DEFAULT_SCOPE,
    as_json: options.Json = False,
) -> None:
    """Compute the ε of noisy releases.

    Example: pacdp account --noise-multiplier 48.448 --releases 13
    """
    from pacdp.privacy import Adjacency, Release, account

    if len(releases) not in (1, len(noise_multiplier)):
        raise InputError(
            f"--releases: given {len(releases)} times, must be given once or as often as "
            f"--noise-multiplier ({len(noise_multiplier)})"
        )
    counts = releases * len(noise_multiplier) if len(releases) == 1 else releases
    planned = [
        Release.clipped_sum(
            noise_multiplier=noise,
            adjacency=Adjacency.parse(adjacency),
            count=count,
            sampling_rate=1.0 if sampling_rate is None else sampling_rate,
        )
        for noise, count in zip(noise_multiplier, counts, strict=True)
    ]
    guarantee = account(planned, delta=delta, accountant=accountant, scope=scope)
    _show(guarantee, planned, as_json)


def calibrate_command(
    epsilon: Annotated[float, Option(help="Budget ε, > 0.")],
    releases: Annotated[int, Option(help="Number of releases that a record contributes to.")],
    delta: options.Delta = options.DEFAULT_DELTA,
    adjacency: options.AdjacencyName = options.DEFAULT_ADJACENCY,
    accountant: options.AccountantName = None,
    sampling_rate: options.SamplingRate = None,
    noise_multiplier: Annotated[
        float | None,
        Option(help="σ/C; if given, compute the largest Poisson sampling rate instead."),
    ] = None,
    scope: options.ScopeName = options.DEFAULT_SCOPE,
    as_json: options.Json = False,
) -> None:
    """Compute the noise needed to stay within a privacy budget.

    Example: pacdp calibrate --epsilon 0.1 --releases 13
    """
    from pacdp.privacy import Guarantee, Scope, account, calibrate, calibrate_sampling_rate

    budget: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "adjacency": adjacency}
    if noise_multiplier is None:
        calibration = calibrate(
            **budget,
            releases=releases,
            accountant=accountant,
            scope=scope,
            sampling_rate=1.0 if sampling_rate is None else sampling_rate,
        )
        plan = calibration.release()
        guarantee = Guarantee(
            epsilon=epsilon,
            delta=delta,
            adjacency=plan.adjacency,
            accountant=calibration.accountant,
            scope=calibration.scope,
        )
    else:
        if sampling_rate is not None or Scope.parse(scope) is not Scope.TOTAL:
            raise InputError(
                "--noise-multiplier: finds the sampling rate of a total budget; "
                "leave out --sampling-rate and --scope"
            )
        plan = calibrate_sampling_rate(
            **budget,
            releases=releases,
            noise_multiplier=noise_multiplier,
            accountant=accountant or "pld",
        )
        # Where the budget affords every record, less than all of it is needed.
        guarantee = account(plan, delta=delta, accountant=accountant)
    _show(guarantee, [plan], as_json)


def _show(guarantee: "Guarantee", releases: Sequence["Release"], as_json: bool) -> None:
    from pacdp.privacy import Scope, account

    noise = [release.noise_multiplier for release in releases]
    counts = [release.count for release in releases]
    rate = releases[0].sampling_rate
    # An ε per release, as in the paper, is always shown with the ε of the whole run.
    per_release = guarantee.scope is Scope.PER_RELEASE
    total = account(releases, delta=guarantee.delta) if per_release else None
    if as_json:
        values: dict[str, Any] = guarantee.to_dict() | {
            "noise_multiplier": noise[0] if len(noise) == 1 else noise,
            "releases": counts[0] if len(set(counts)) == 1 else counts,
            "sampling_rate": rate,
        }
        if total:
            values |= {"epsilon_total": total.epsilon, "accountant_total": total.accountant}
        print_json(values)
        return
    rows = {"guarantee": str(guarantee)}
    if total:
        rows["whole run"] = str(total)
    rows["noise multiplier"] = ", ".join(f"{value:.10g}" for value in noise) + "  (σ/C)"
    rows["releases"] = ", ".join(map(str, counts)) + "  (per record)"
    rows["sampling rate"] = (
        f"{rate:.8g}  (Poisson, per record)" if rate < 1 else "1  (every record)"
    )
    print_rows(rows)
