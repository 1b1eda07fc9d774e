"""Federated learning in which every client chooses its own privacy budget, and gets it."""

from importlib.metadata import version

__version__ = version("pacdp")
