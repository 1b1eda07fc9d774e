"""The paper's experiments from one command: run what is missing, tabulate, draw, report."""
