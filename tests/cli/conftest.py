"""Refusals without a process of their own: there are many, and starting one takes seconds."""

import sys

import pytest

from pacdp.cli import main


@pytest.fixture
def refuses(capsys, monkeypatch, tmp_path):
    """Calls the command in an empty folder; it must say no in one line and leave nothing there."""

    def call(*arguments):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["pacdp", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        out, error = capsys.readouterr()
        assert (end.value.code, out) == (2, "")
        assert error.count("\n") == 1
        assert error.startswith("pacdp: ")
        assert not list(tmp_path.iterdir())
        return error

    return call
