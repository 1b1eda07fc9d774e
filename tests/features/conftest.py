"""A cache of its own for every test, small references, and public pools of our own."""

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
    """Where maps are kept: never in the user's own folder."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("PACDP_CACHE_DIR", str(folder))
    # Fewer images than in earnest: a test asks what is done, and not how well.
    module = import_module("pacdp.features.pipeline")
    monkeypatch.setattr(module, "_REFERENCE", 150)
    return folder / "representations"


@pytest.fixture(scope="session")
def drawn():
    return load_dataset("strokes", records=1000, seed=5)


def made_pool(training, judge):
    """A pool in which the network of a rehearsal does not see the second half."""
    half = np.arange(len(training.train)) < len(training.train) // 2
    return PublicData(
        name="ours",
        training=training,
        selection_training=replace(training, name="one half", train=training.train.take(half)),
        selection_proxy=Proxy(data=judge, stands_for="private", made_by="a test"),
    )


@pytest.fixture
def public(monkeypatch, drawn):
    """Put a pool of the name ``ours`` beside the ready ones."""

    def put(training=drawn, judge=None):
        judge = load_dataset("strokes", records=100, seed=6) if judge is None else judge
        monkeypatch.setitem(PUBLIC_DATA, "ours", lambda: made_pool(training, judge))
        load_public_data.cache_clear()
        return load_public_data("ours")

    yield put
    load_public_data.cache_clear()
