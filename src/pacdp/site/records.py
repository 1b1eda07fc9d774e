"""Synthetic records that stand in for a client's own when answers are timed."""

import numpy as np

from pacdp.data.records import Records
from pacdp.federation import Plan


def make_synthetic_records(plan: Plan, client: int, like: Records) -> Records:
    """Make all-zero records, as many and of the same types as the client's own."""
    planned, declared = plan.clients[client], plan.privacy.records
    units = np.arange(planned.records) % planned.units
    budgets = None
    if planned.levels and declared is not None and declared.shares is None:
        counts = [level.units for level in planned.levels]
        budgets = np.repeat(np.array(declared.levels), counts)[units]
    return Records(
        features=np.zeros((planned.records, *plan.shape), like.features.dtype),
        labels=np.zeros(planned.records, like.labels.dtype),
        units=None if plan.unit == "record" else units,
        budgets=budgets,
    )
