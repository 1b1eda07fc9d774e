"""Reading the records of one client, or public test records, for a plan."""

from pathlib import Path

import numpy as np

from pacdp.data.records import Dataset, Provenance, Records
from pacdp.data.user_folder import read_client_file
from pacdp.features import extract_features
from pacdp.federation.plan import Plan


def read_records(path: Path, plan: Plan) -> Records:
    """Read a .csv or .npz file, and compute the features on which the plan's model is trained."""
    records = read_client_file(path, task=plan.task, unit=plan.unit)
    if plan.representation is None:
        return records
    dataset = Dataset(
        name=plan.data,
        clients=(path.stem,),
        train=records,
        # Required by Dataset, but not used here.
        test=records.take(np.arange(1)),
        task=plan.task,
        unit=plan.unit,
        provenance=Provenance(source="a file of records", licence="private"),
    )
    return extract_features(dataset, plan.representation).train
