"""Figures of the paper's studies and theory."""
