"""The paper's theorems with their constants and dimension, and what measurements say of them."""

from pacdp.paper.theory.cost import amortised, client_operations, offline_operations, round_bytes
from pacdp.paper.theory.rates import Task, at_budget, best_rounds, bound, stated, tuned_step
from pacdp.paper.theory.surrogate import Surrogate, exact_bias, proxy_norms, surrogate_bounds

__all__ = [
    "Surrogate",
    "Task",
    "amortised",
    "at_budget",
    "best_rounds",
    "bound",
    "client_operations",
    "exact_bias",
    "offline_operations",
    "proxy_norms",
    "round_bytes",
    "stated",
    "surrogate_bounds",
    "tuned_step",
]
