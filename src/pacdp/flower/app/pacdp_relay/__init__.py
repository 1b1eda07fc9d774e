"""Moves the bytes of a pacdp federation between the coordinator and the sites."""
