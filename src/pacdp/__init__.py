"""Federated learning with a separate, enforced privacy budget for each client.

>>> import pacdp
>>> result = pacdp.run("heart-personalised", method="pac-dp", seed=0, profile="smoke")
>>> result.clients[0].epsilon_spent <= result.clients[0].epsilon_budget
True
"""

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pacdp.api import *  # noqa: F403

__version__ = version("pacdp")

__all__ = [  # noqa: F405
    "Comparison",
    "Curve",
    "Experiment",
    "Plan",
    "Result",
    "TunedConfiguration",
    "compare",
    "fit",
    "load_experiment",
    "plan",
    "report",
    "run",
    "tune",
]


def __getattr__(name: str) -> Any:
    # torch and the rest are loaded with the first function that is used.
    if name in __all__:
        from pacdp import api

        return getattr(api, name)
    raise AttributeError(f"module 'pacdp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
