"""The client's own records at a site, and synthetic ones in their place."""

from pathlib import Path

import numpy as np

from pacdp.data.records import Dataset, Provenance, Records
from pacdp.data.user_folder import read_client_file
from pacdp.features import extract_features
from pacdp.federation import Plan


def read_records(path: Path, plan: Plan) -> Records:
    """Read the client's file, with the features on which the plan's model is trained."""
    records = read_client_file(path, task=plan.task, unit=plan.unit)
    if plan.representation is None:
        return records
    dataset = Dataset(
        name=plan.data,
        clients=(path.stem,),
        train=records,
        # A data set needs test records; a site has none, and uses none.
        test=records.take(np.arange(1)),
        task=plan.task,
        unit=plan.unit,
        provenance=Provenance(source="the site's own records", licence="private"),
    )
    return extract_features(dataset, plan.representation).train


def make_synthetic_records(plan: Plan, client: int, like: Records) -> Records:
    """Make as many records as a client has, of the same types, which hold zeros only."""
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
