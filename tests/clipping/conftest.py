"""Files that pytest must not collect."""

# A proof, not a test; it needs python-flint, which nothing else does.
collect_ignore = ["prove_ndtri.py"]
