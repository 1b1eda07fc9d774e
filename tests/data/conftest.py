"""Real files, found through PACDP_DATA_DIR alone; without them a test is skipped by name."""

import subprocess
import sys
from functools import cache

import pytest

from pacdp.data import data_folder, load_dataset
from pacdp.data.images import CIFAR100
from pacdp.errors import DataError


@cache
def _loaded(name, folder):
    try:
        return load_dataset(name, folder=folder)
    except DataError as error:
        return error


def real(name, folder=None):
    found = _loaded(name, folder)
    if isinstance(found, DataError):
        if "is not in" not in str(found):
            raise found
        pytest.skip(f"{name} is not in PACDP_DATA_DIR")
    return found


@pytest.fixture
def mnist():
    return real("mnist")


@pytest.fixture
def cifar10():
    return real("cifar10")


@pytest.fixture(scope="session")
def cifar100_folder(tmp_path_factory):
    """Where CIFAR-100 is, or made by the tool that lies beside a more compact copy."""
    home = data_folder()
    tool = home / "cifar100_to_canonical.py"
    if CIFAR100.locate(home) or not tool.is_file():
        return home
    folder = tmp_path_factory.mktemp("cifar100")
    subprocess.run([sys.executable, str(tool), str(folder)], check=True)
    CIFAR100.store(CIFAR100.read(folder / "cifar-100-python"), folder)
    return folder


@pytest.fixture
def cifar100(cifar100_folder):
    return real("cifar100", cifar100_folder)
