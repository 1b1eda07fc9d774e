"""Theorem 6: operations and bytes of a round and of the offline phase.

The theorem's orders count the model's parameters and leave out the examples. A step on a batch of B
examples costs B times as much as on one, and a simulated training has as many clients as the real
one: both are factors here, and with both set to one the counts are the paper's.
"""

from pacdp.validation import require_count, require_positive_number, require_rate, require_scalar

BYTES_PER_NUMBER = 4


def count_round_bytes(*, clients: int, sampling_rate: float, dimension: int) -> float:
    """Count the bytes of a round, O(qMd): each sampled client receives and sends one model.

    >>> count_round_bytes(clients=100, sampling_rate=0.1, dimension=1_000_000)
    80000000.0
    """
    sampled = _multiply(clients=clients) * float(require_rate("sampling_rate", sampling_rate))
    return 2 * sampled * _multiply(dimension=dimension) * BYTES_PER_NUMBER


def count_client_operations(*, local_steps: int, dimension: int, batch: int = 1) -> float:
    """Count a client's operations in a round, O(R·d) with one example per step.

    Gradients and clipping process each example; noise and the step process the model once.

    >>> count_client_operations(local_steps=5, dimension=1000)
    20000.0
    >>> count_client_operations(local_steps=5, dimension=1000, batch=128)
    1290000.0
    """
    steps = _multiply(local_steps=local_steps, dimension=dimension)
    return float(steps * (2 * _multiply(batch=batch) + 2))


def count_offline_operations(
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
    """Count the operations of the grid, O(n·m·T_pre·d), times seeds, clients, steps and examples.

    >>> count_offline_operations(budgets=7, bounds=12, rounds=20, dimension=28)
    188160.0
    >>> count_offline_operations(
    ...     budgets=7, bounds=12, rounds=20, dimension=28, seeds=5, clients=4, batch=185)
    349977600.0
    """
    trainings = _multiply(
        budgets=budgets, bounds=bounds, seeds=seeds, rounds=rounds, clients=clients
    )
    return trainings * count_client_operations(
        local_steps=local_steps, dimension=dimension, batch=batch
    )


def amortise_offline_cost(*, offline: float, online: float, runs: int) -> float:
    """Return the offline phase's share of all operations if one curve serves several runs.

    >>> [round(amortise_offline_cost(offline=900, online=100, runs=n), 2) for n in (1, 10, 100)]
    [0.9, 0.47, 0.08]
    """
    once = require_positive_number("offline", offline)
    return once / (once + require_positive_number("online", online) * _multiply(runs=runs))


def _multiply(**counts: int) -> int:
    product = 1
    for name, value in counts.items():
        product *= int(require_scalar(name, require_count(name, value)))
    return product
