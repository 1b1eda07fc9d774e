"""Theorem 6: what a round and the offline phase cost, as counts.

The theorem's orders count numbers of the model and leave out the examples. A step on a batch of B
examples costs B times as much as on one, and a simulated training has as many clients as the real
one: both are factors here, and with both set to one the functions are the paper's.
"""

from pacdp.errors import InputError
from pacdp.validation import count, positive_number, rate

BYTES_PER_NUMBER = 4


def round_bytes(*, clients: int, sampling_rate: float, dimension: int) -> float:
    """Bytes of a round up and down, O(qMd): each asked client gets a model and sends one.

    >>> round_bytes(clients=100, sampling_rate=0.1, dimension=1_000_000)
    80000000.0
    """
    asked = _whole("clients", clients) * float(rate("sampling_rate", sampling_rate))
    return 2 * asked * _whole("dimension", dimension) * BYTES_PER_NUMBER


def client_operations(*, local_steps: int, dimension: int, batch: int = 1) -> float:
    """Operations of a client in a round, O(R·d) for one example a step, in units of one each.

    Gradients and clipping go over each example, noise and the step over the model once.

    >>> client_operations(local_steps=5, dimension=1000), client_operations(
    ...     local_steps=5, dimension=1000, batch=128)
    (20000.0, 1290000.0)
    """
    each = 2 * _whole("batch", batch) + 2
    return float(_whole("local_steps", local_steps) * _whole("dimension", dimension) * each)


def offline_operations(
    *,
    budgets: int,
    bounds: int,
    rounds: int,
    dimension: int,
    seeds: int = 1,
    clients: int = 1,
    local_steps: int = 1,
    batch: int = 1,
) -> float:
    """Operations of the grid, O(n·m·T_pre·d) times seeds, clients, local steps and examples.

    >>> offline_operations(budgets=7, bounds=12, rounds=20, dimension=28)
    188160.0
    >>> offline_operations(
    ...     budgets=7, bounds=12, rounds=20, dimension=28, seeds=5, clients=4, batch=185)
    349977600.0
    """
    cells = _whole("budgets", budgets) * _whole("bounds", bounds) * _whole("seeds", seeds)
    trainings = cells * _whole("rounds", rounds) * _whole("clients", clients)
    return trainings * client_operations(local_steps=local_steps, dimension=dimension, batch=batch)


def amortised(*, offline: float, online: float, runs: int) -> float:
    """The offline phase's share of all operations, when one curve serves several runs.

    >>> [round(amortised(offline=900, online=100, runs=runs), 2) for runs in (1, 10, 100)]
    [0.9, 0.47, 0.08]
    """
    whole = positive_number("offline", offline)
    all_runs = positive_number("online", online) * _whole("runs", runs)
    return whole / (whole + all_runs)


def _whole(name: str, value: int) -> int:
    number = count(name, value)
    if number.ndim:
        raise InputError(f"{name}: has {number.size} values, must be one number")
    return int(number)
