"""Flower as the transport of a federation.

Flower lives in an environment of its own (:mod:`pacdp.flower.environment`), because its
requirements contradict those of pacdp. The app that it runs (the folder ``app``) only moves bytes
between the coordinator's socket and the sockets of the sites.
"""
