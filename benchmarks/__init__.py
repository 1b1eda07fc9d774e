"""Ratios of two things measured in one run, on one machine, against the libraries of the field."""
