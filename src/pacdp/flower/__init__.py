"""Flower as the transport of a federation.

Flower is installed in a separate virtual environment (:mod:`pacdp.flower.environment`), because its
requirements conflict with those of pacdp. The app that it runs (the folder ``app``) only moves
bytes between the coordinator's socket and the sockets of the sites.
"""
