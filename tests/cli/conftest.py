"""Refusals without a process of their own: there are many, and starting one takes seconds."""

import sys

import pytest

from pacdp.cli import main


@pytest.fixture
def refuses_in(capsys, monkeypatch):
    """Calls the command in a folder; it must say no in one line."""

    def call(folder, *arguments):
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", ["pacdp", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        out, error = capsys.readouterr()
        assert (end.value.code, out) == (2, "")
        assert error.count("\n") == 1
        assert error.startswith("pacdp: ")
        return error

    return call


@pytest.fixture
def refuses(refuses_in, tmp_path):
    """Calls the command in an empty folder; it must say no in one line and leave nothing there."""

    def call(*arguments):
        error = refuses_in(tmp_path, *arguments)
        assert not list(tmp_path.iterdir())
        return error

    return call
