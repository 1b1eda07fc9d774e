"""Flower's exchange without anything else: 1 kB to every node and back."""
