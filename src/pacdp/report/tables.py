"""The tables of a page."""

from collections.abc import Mapping, Sequence

from pacdp.experiments import RunResult
from pacdp.experiments.results import collect_epsilons
from pacdp.federation import ClientResult
from pacdp.formatting import (
    NOTHING,
    duration,
    least_middle_most,
    mean_and_deviation,
    number,
    score,
    size,
)
from pacdp.report.comparison import Arms, finals, metric_of, terms_of
from pacdp.report.figures.base import Table
from pacdp.report.figures.clients import ordered
from pacdp.stats import SampleStats


def methods_table(arms: Arms) -> Table:
    """One row for each arm: what it reaches, what it was asked to keep, and what it certifies."""
    metric, plan = metric_of(arms), next(iter(arms.values()))[0].plan
    first = any(outcome.before_private_data for runs in arms.values() for outcome in runs)
    headings = (
        *("method", "seeds", f"final {metric}"),
        *(("before private data",) if first else ()),
        *("budget ε", "certified ε", "bytes in all", "time"),
    )
    rows = []
    for label, outcomes in arms.items():
        sent = [outcome.bytes_per_round * outcome.rounds for outcome in outcomes]
        rows.append(
            (
                *(label, str(len(outcomes)), _mean(finals(outcomes, metric), metric)),
                *((_before(outcomes, metric),) if first else ()),
                least_middle_most(collect_epsilons(outcomes, "epsilon_budget")),
                least_middle_most(collect_epsilons(outcomes, "epsilon_spent")),
                size(sum(sent) / len(sent)),
                duration(sum(outcome.seconds for outcome in outcomes) / len(outcomes)),
            )
        )
    return Table(
        headings,
        tuple(rows),
        "Mean ± standard deviation over seeds. ε: those of clients and seeds, or where many "
        f"differ the least / median / most, at {terms_of(plan)}. Bytes: up and down, "
        "all clients, all rounds of one run.",
    )


def _mean(found: Mapping[int, float], metric: str) -> str:
    if not found:
        return NOTHING
    if len(found) == 1:
        return score(next(iter(found.values())), metric)
    spread = SampleStats.of(list(found.values()))
    return mean_and_deviation(spread.mean, spread.deviation, metric)


def _before(outcomes: Sequence[RunResult], metric: str) -> str:
    """How good the first model was, where public records trained it."""
    told = [outcome.before_private_data for outcome in outcomes]
    return _mean({n: one[metric] for n, one in enumerate(told) if one}, metric)


def clients_table(outcome: RunResult) -> Table:
    """One row for each client of a run."""
    return Table(
        (
            *("client", "records", "budget ε", "planned ε", "realised ε", "left ε"),
            *("releases made / planned", "σ/C", "signal to noise", "refused", "failed"),
            "accuracy",
        ),
        tuple(_client(client) for client in ordered(outcome)),
        f"Seed {outcome.plan.seed}. ε at {terms_of(outcome.plan)}; left is budget less realised.",
    )


def _client(client: ClientResult) -> tuple[str, ...]:
    private = client.epsilon_spent is not None
    return (
        client.name,
        str(client.records),
        number(client.epsilon_budget),
        number(client.epsilon_planned, 6),
        number(client.epsilon_spent, 6),
        number(client.epsilon_left),
        f"{client.releases} / {client.releases_planned}" if private else NOTHING,
        number(client.noise_multiplier),
        number(client.signal_to_noise),
        str(client.refused),
        str(client.failed),
        score(client.accuracy, "accuracy"),
    )
