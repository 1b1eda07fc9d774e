"""Aggregation weights of the clients that answered.

They depend on public facts only: sizes, budgets and noise. With equal budgets the rules by noise
equal the rule by size. Inverse variance gains most where clients are alike and loses under label
skew, because it nearly ignores clients with small budgets; ``inverse-noise`` does so to a lesser
degree. ``tempered``, the default, weights no client more than twice as much as the median client of
the same size.
"""

from collections.abc import Sequence

import numpy as np

from pacdp.federation.plan import Plan
from pacdp.methods import SharedState
from pacdp.validation import FloatArray


def client_weights(
    plan: Plan,
    answered: Sequence[int],
    *,
    round: int,  # noqa: A002
    scales: Sequence[float] | None = None,
    shared_state: SharedState | None = None,
) -> FloatArray:
    """Return one weight for each client that answered; they add up to one.

    ====================  ===============================================
    ``size``              n_i, the paper's
    ``epsilon``           n_i·ε_i
    ``inverse-noise``     n_i/z_i
    ``tempered``          n_i/(z_i² + z²), z the median of all clients
    ``inverse-variance``  (divisor_i/(z_i·C_i))², whatever the size
    ====================  ===============================================

    Where records have budgets of their own, n_i counts each record by its clipping bound over the
    largest. Methods without noise weight by size. ``scales`` are the noise scales under uneven
    spending. ``shared_state`` is the method's state on the server at the time the clients were
    asked: if clipping bounds depend on it, C_i is the bound of that time.
    """
    clients = [plan.clients[number] for number in answered]
    sizes = np.array([client.effective_records for client in clients])
    if any(client.noise_multiplier is None for client in clients):
        return sizes / sizes.sum()
    noise = np.array([client.noise_multiplier for client in clients], float)
    if scales is not None:
        noise *= scales
    raw = sizes
    rule = plan.server.weights
    if rule == "epsilon":
        raw = sizes * np.array([client.epsilon for client in clients])
    elif rule == "inverse-noise":
        raw = sizes / noise
    elif rule == "tempered":
        everyone = [client.noise_multiplier or 0.0 for client in plan.clients]
        raw = sizes / (noise**2 + np.median(everyone) ** 2)
    elif rule == "inverse-variance":
        method = plan.algorithm
        state = method.initial_state(len(plan.clients)) if shared_state is None else shared_state
        bounds = [
            method.current_bound(
                method.bound(client.epsilon, round=round, rounds=plan.rounds), state, number
            )
            for number, client in zip(answered, clients, strict=True)
        ]
        raw = (np.array([client.divisor for client in clients]) / (noise * bounds)) ** 2
    return raw / raw.sum()
