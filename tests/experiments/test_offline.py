"""The offline phase of an experiment asks the clients for their sizes and for nothing else."""

from dataclasses import replace

import numpy as np
import pytest

from pacdp.data import read_folder
from pacdp.data.proxy import PROXIES, Proxy
from pacdp.errors import DataError
from pacdp.experiments import read_experiment
from pacdp.experiments.offline import make_proxy_task
from pacdp.experiments.prepare import prepare_run, read_data
from pacdp.offline import fit_curve

GRID = [
    "training.rounds=2",
    "offline.seeds=1",
    "offline.budgets=[0.1, 0.3, 1.0, 3.0]",
    "offline.bounds=[0.1, 1.0, 10.0]",
]


def hospital(path, first, rows=30):
    lines = [f"{first + n},{n % 7},{n % 2}" for n in range(rows)]
    path.write_text("age,rate,label\n" + "\n".join(lines) + "\n")


def test_a_curve_depends_on_no_private_record():
    experiment = read_experiment("heart", changes=GRID)
    data, split = read_data(experiment.data, seed=0)
    train = replace(
        data.train,
        features=np.ascontiguousarray(data.train.features[::-1] * 0.5),
        labels=1 - data.train.labels,
        keys=None,
    )
    other = replace(data, train=train)
    settings = [make_proxy_task(experiment, read=(part, split)) for part in (data, other)]
    assert settings[0].digest == settings[1].digest
    one, two = (fit_curve(setting, experiment.offline) for setting in settings)
    assert one.coefficients == two.coefficients
    assert one.evidence == two.evidence


def test_a_proxy_with_a_clients_record_is_refused_before_anything_is_trained(tmp_path):
    for name in ("mine", "public"):
        (tmp_path / name).mkdir()
        hospital(tmp_path / name / "a.csv", first=100 if name == "public" else 0)
    changes = [
        *(f"data.name={tmp_path / 'mine'}", "data.options.classes=2", *GRID),
        f"offline.proxy={tmp_path / 'public'}",
    ]
    experiment = read_experiment("heart", changes=changes)
    assert make_proxy_task(experiment).proxy.data.name == "public"
    # One line of a client in the proxy.
    path = tmp_path / "public" / "a.csv"
    path.write_text(path.read_text() + "3,3,1\n")
    with pytest.raises(DataError, match="shares records with private data"):
        make_proxy_task(experiment)


def test_a_hot_start_on_a_clients_record_is_refused(monkeypatch, tmp_path):
    hospital(tmp_path / "a.csv", first=0)
    mine = Proxy(data=read_folder(tmp_path, classes=2), stands_for="mine", made_by="as it is")
    monkeypatch.setitem(PROXIES, str(tmp_path), {"mine": lambda: mine})
    changes = [f"data.name={tmp_path}", "data.options.classes=2", "hot_start.epochs=1"]
    with pytest.raises(DataError, match="shares records with private data"):
        prepare_run(read_experiment("heart", changes=changes))
