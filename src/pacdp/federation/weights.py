"""What a client's update counts, over those who answered.

All of it is public: sizes, budgets and noise. With equal budgets the rules by noise are those by
size, so that nobody loses where there is nothing to gain. Inverse variance gains most where clients
are alike and loses under label skew, because it all but leaves out those who ask for much privacy,
and so, less, does ``inverse-noise``. ``tempered``, the default, listens to nobody more than twice
as much as to the median client of the same size.
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
    """One weight for each client that answered; they add up to one.

    ====================  ===============================================
    ``size``              n_i, the paper's
    ``epsilon``           n_i·ε_i
    ``inverse-noise``     n_i/z_i
    ``tempered``          n_i/(z_i² + z²), z the median of all clients
    ``inverse-variance``  (divisor_i/(z_i·C_i))², whatever the size
    ====================  ===============================================

    Methods without noise weigh by size. ``scales`` are those of the noise, where budgets move.
    ``shared_state`` is the method's state on the server at the time the clients were asked: if
    clipping bounds depend on it, C_i is the bound that was in use.
    """
    clients = [plan.clients[number] for number in answered]
    sizes = np.array([client.records for client in clients], float)
    noises = [client.noise_multiplier for client in clients]
    known = np.array([noise for noise in noises if noise is not None], float)
    if len(known) < len(clients):
        return sizes / sizes.sum()
    if scales is not None:
        known *= scales
    rule = plan.server.weights
    if rule == "epsilon":
        raw = sizes * np.array([client.epsilon for client in clients])
    elif rule == "inverse-noise":
        raw = sizes / known
    elif rule == "tempered":
        everyone = [client.noise_multiplier or 0.0 for client in plan.clients]
        raw = sizes / (known**2 + np.median(everyone) ** 2)
    elif rule == "inverse-variance":
        method = plan.algorithm
        state = method.initial_state(len(plan.clients)) if shared_state is None else shared_state
        planned = [
            method.bound(client.epsilon, round=round, rounds=plan.rounds) for client in clients
        ]
        bounds = [
            method.current_bound(bound, state, client)
            for bound, client in zip(planned, answered, strict=True)
        ]
        raw = (np.array([client.divisor for client in clients]) / (known * bounds)) ** 2
    else:
        raw = sizes
    return raw / raw.sum()
