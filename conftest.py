"""Settings for the examples in the documentation, which are run as tests."""

import pytest

# Programs of Flower's environment, which cannot be imported in this one.
collect_ignore_glob = ["src/pacdp/flower/app/pacdp_relay/*_app.py"]


@pytest.fixture(autouse=True)
def _examples_of_the_readme_write_elsewhere(request, monkeypatch):
    """Run the README's examples in a temporary folder, because they write files."""
    if request.path.name == "README.md":
        monkeypatch.chdir(request.getfixturevalue("tmp_path"))
