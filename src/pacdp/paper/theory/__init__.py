"""The paper's theorems with explicit constants and dimension, and measurements of them."""

from pacdp.paper.theory.cost import (
    amortise_offline_cost,
    count_client_operations,
    count_offline_operations,
    count_round_bytes,
)
from pacdp.paper.theory.rates import (
    RateParameters,
    best_rounds,
    best_step,
    bound_at_budget,
    error_bound,
    stated_rate,
)
from pacdp.paper.theory.surrogate import (
    Surrogate,
    compute_clipping_bias,
    compute_proxy_norms,
    predict_thresholds,
)

__all__ = [
    "RateParameters",
    "Surrogate",
    "amortise_offline_cost",
    "best_rounds",
    "best_step",
    "bound_at_budget",
    "compute_clipping_bias",
    "compute_proxy_norms",
    "count_client_operations",
    "count_offline_operations",
    "count_round_bytes",
    "error_bound",
    "predict_thresholds",
    "stated_rate",
]
