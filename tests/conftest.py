"""Settings for all tests."""

import os
import shutil
import tempfile

import pytest
import torch
from hypothesis import settings

# No test is timed: how long an example takes says nothing about whether it is right.
settings.register_profile("pacdp", deadline=None, derandomize=True)
settings.load_profile("pacdp")


@pytest.fixture(scope="module")
def two_threads():
    """Work on threads is tested on threads, however many a machine or a run has."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def pytest_configure(config):
    """What is computed once is kept for this run alone, by all of its processes."""
    if threads := os.environ.get("PACDP_TEST_THREADS"):
        # By itself torch uses no more threads than there are cores.
        torch.set_num_threads(int(threads))
    if not hasattr(config, "workerinput"):
        config.kept = os.environ["PACDP_CACHE_DIR"] = tempfile.mkdtemp(prefix="pacdp-cache-")
        if config.getoption("numprocesses", None):
            # Processes that each take all cores stand in each other's way.
            os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_unconfigure(config):
    """Nothing is left behind."""
    if hasattr(config, "kept"):
        shutil.rmtree(config.kept, ignore_errors=True)
