"""The command line: thin, and the only place that prints or exits."""

from pacdp.cli.app import main

__all__ = ["main"]
