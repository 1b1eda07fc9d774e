"""The guide for two administrators, followed in two network namespaces."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from pacdp.flower.environment import is_ready, locate_environment
from tests.deployment.two_hosts import run_guide


def test_the_guide_leads_to_a_federation_of_two_machines():
    if os.geteuid() != 0:
        pytest.skip("needs root, for network namespaces and users")
    for program in ("ip", "setpriv", "unshare"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    if not is_ready(locate_environment()):
        pytest.skip("Flower's environment is not there: set PACDP_FLOWER_ENV")
    # The paths of sockets must be short.
    base = Path(tempfile.mkdtemp(prefix="pr-", dir="/tmp"))
    lines = []
    try:
        checks = run_guide(base, lines.append)
    except RuntimeError as error:
        if "ip netns" in str(error):
            pytest.skip("network namespaces are not allowed here")
        raise
    finally:
        shutil.rmtree(base, ignore_errors=True)
    assert checks
    assert all(checks.values()), checks
