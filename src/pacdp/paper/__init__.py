"""The experiments and the theory of the PAC-DP paper. The library never imports this package."""
