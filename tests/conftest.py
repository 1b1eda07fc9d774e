"""Settings for all tests."""

import os
import shutil
import tempfile

from hypothesis import settings

# No test is timed: how long an example takes says nothing about whether it is right.
settings.register_profile("pacdp", deadline=None, derandomize=True)
settings.load_profile("pacdp")


def pytest_configure(config):
    """What is computed once is kept for this run alone, by all of its processes."""
    if not hasattr(config, "workerinput"):
        config.kept = os.environ["PACDP_CACHE_DIR"] = tempfile.mkdtemp(prefix="pacdp-cache-")


def pytest_unconfigure(config):
    """Nothing is left behind."""
    if hasattr(config, "kept"):
        shutil.rmtree(config.kept, ignore_errors=True)
