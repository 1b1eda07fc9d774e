"""A cache of its own for every test, small references, and public pools of our own."""

from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest

from pacdp.data import load
from pacdp.data.proxy import Proxy
from pacdp.features import pool
from pacdp.features.public_data import POOLS, Pool


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
    return load("strokes", records=1000, seed=5)


def made_pool(training, judge):
    """A pool in which the network of a rehearsal does not see the second half."""
    half = np.arange(len(training.train)) < len(training.train) // 2
    return Pool(
        name="ours",
        training=training,
        rehearsal=replace(training, name="one half", train=training.train.take(half)),
        judge=Proxy(data=judge, stands_for="private", made_by="a test"),
    )


@pytest.fixture
def public(monkeypatch, drawn):
    """Put a pool of the name ``ours`` beside the ready ones."""

    def put(training=drawn, judge=None):
        judge = load("strokes", records=100, seed=6) if judge is None else judge
        monkeypatch.setitem(POOLS, "ours", lambda: made_pool(training, judge))
        pool.cache_clear()
        return pool("ours")

    yield put
    pool.cache_clear()
