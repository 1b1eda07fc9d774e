"""Row 4: calibrating 10,000 clients, against dp-accounting's search with PLD."""

import itertools
from collections.abc import Iterator

import dp_accounting
import numpy as np
from dp_accounting.pld import PLDAccountant

from benchmarks.harness import Row, interleaved, versions
from pacdp.privacy import calibrate

CLIENTS = 10_000
RELEASES = 13


def rows() -> Iterator[Row]:
    """Every client with a budget of its own, from 0.01 to 10."""
    budgets = np.geomspace(0.01, 10, CLIENTS)
    # The peer is asked for a few clients spread over the same range, one each time.
    some = budgets[:: CLIENTS // 8]
    answers = calibrate(epsilon=some, releases=RELEASES).noise_multiplier
    spread = itertools.cycle(zip(some.tolist(), answers.tolist(), strict=True))
    ours, peer = interleaved(
        lambda: calibrate(epsilon=budgets, releases=RELEASES),
        lambda: _calibrate_by_pld(*next(spread)),
        repeats=8,
    )
    per_client = ours / CLIENTS
    yield Row(
        row=4,
        work=f"calibrating {CLIENTS:,} clients",
        against="dp_accounting calibrate_dp_mechanism with PLD, per client",
        ratio=peer / per_client,
        goal=">= 10,000x, and all clients in under 0.1 s",
        holds=peer / per_client >= 10_000 and ours < 0.1,
        versions=versions("pacdp", "dp-accounting", "scipy", "numpy"),
        details={"seconds_all_clients": ours, "seconds_peer_one_client": peer},
    )


def _calibrate_by_pld(epsilon: float, answer: float) -> float:
    """One client by the peer, which is told the answer within a factor of two."""
    return float(
        dp_accounting.calibrate_dp_mechanism(
            lambda: PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_SPECIAL),
            lambda noise: dp_accounting.SelfComposedDpEvent(
                dp_accounting.GaussianDpEvent(noise), RELEASES
            ),
            target_epsilon=epsilon,
            target_delta=1e-5,
            bracket_interval=dp_accounting.ExplicitBracketInterval(answer / 1.5, answer * 1.5),
        )
    )
