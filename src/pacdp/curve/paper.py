"""The two curves published in the paper (PAC-DP, section on simulation results)."""

# Coefficients of αε² + βε + γ, and R².
PUBLISHED_CURVES: dict[str, tuple[tuple[float, float, float], float]] = {
    "mnist": ((-5.5235, 12.0719, 1.4004), 0.9806),
    "cifar10": ((0.0426, 1.2900, 1.1060), 0.9490),
}
