"""A separate cache for every test, few reference images, and small public data."""

from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest

from pacdp.data import load_dataset
from pacdp.data.proxy import Proxy
from pacdp.features import load_public_data
from pacdp.features.public_data import PUBLIC_DATA, PublicData


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The cache folder, never that of the user."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("PACDP_CACHE_DIR", str(folder))
    # Few images are enough, because the tests do not measure accuracy.
    module = import_module("pacdp.features.pipeline")
    monkeypatch.setattr(module, "_REFERENCE", 150)
    return folder / "representations"


@pytest.fixture(scope="session")
def drawn():
    return load_dataset("strokes", records=1000, seed=5)


def make_public_data(training, proxy):
    """Public data of which the second half is not used in training for selection."""
    half = np.arange(len(training.train)) < len(training.train) // 2
    return PublicData(
        name="ours",
        training=training,
        selection_training=replace(training, name="one half", train=training.train.take(half)),
        selection_proxy=Proxy(data=proxy, stands_for="private", made_by="a test"),
    )


@pytest.fixture
def public(monkeypatch, drawn):
    """Register public data of the name ``ours``."""

    def put(training=drawn, judge=None):
        judge = load_dataset("strokes", records=100, seed=6) if judge is None else judge
        monkeypatch.setitem(PUBLIC_DATA, "ours", lambda: make_public_data(training, judge))
        load_public_data.cache_clear()
        return load_public_data("ours")

    yield put
    load_public_data.cache_clear()
