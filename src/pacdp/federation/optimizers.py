"""Optimisers of clients and servers."""

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor

from pacdp.federation.configuration import Aggregation, Optimiser


def update_gains(settings: Optimiser, steps: int) -> list[float] | None:
    """Return the factor with which the gradient of each local step enters a client's update.

    With momentum m, the gradient of a step also moves all later ones: lr·(1 + m + m² + ...). None
    for Adam, whose update is not linear in the gradients.

    >>> update_gains(Optimiser(name="momentum", lr=0.5, momentum=0.5), steps=3)
    [0.875, 0.75, 0.5]
    """
    if settings.name == "adam":
        return None
    momentum = settings.momentum if settings.name == "momentum" else 0.0
    return [settings.lr * (1 - momentum**left) / (1 - momentum) for left in range(steps, 0, -1)]


class ParameterOptimizer:
    """An optimiser that updates parameters in place when called with a gradient.

    >>> parameters = {"w": torch.ones(2)}
    >>> step = ParameterOptimizer.of_client(Optimiser(lr=0.5), parameters)
    >>> step({"w": torch.ones(2)})
    >>> parameters["w"]
    tensor([0.5000, 0.5000])
    """

    def __init__(
        self, kind: str, parameters: Mapping[str, Tensor], *, lr: float, momentum: float
    ) -> None:
        self._parameters = parameters
        self._lr = lr
        values = list(parameters.values())
        self._optimiser: torch.optim.Optimizer | None = None
        # Plain SGD needs no torch optimiser, and loading those takes a second or two.
        if kind == "momentum":
            self._optimiser = torch.optim.SGD(values, lr=lr, momentum=momentum)
        elif kind == "adam":
            self._optimiser = torch.optim.Adam(values, lr=lr)

    @classmethod
    def of_client(cls, settings: Optimiser, parameters: Mapping[str, Tensor]) -> Self:
        """Create a client's optimiser, for one participation."""
        return cls(settings.name, parameters, lr=settings.lr, momentum=settings.momentum)

    @classmethod
    def of_server(cls, settings: Aggregation, parameters: Mapping[str, Tensor]) -> Self:
        """Create the server's optimiser, for the whole training."""
        return cls(settings.optimiser, parameters, lr=settings.lr, momentum=settings.momentum)

    def __call__(self, gradient: Mapping[str, Tensor]) -> None:
        """Take a step. A gradient may hold the first rows only; the others count as zero."""
        if self._optimiser is None:
            with torch.no_grad():
                for name, value in self._parameters.items():
                    step = gradient[name]
                    rows = value if step.shape == value.shape else value[: len(step)]
                    rows.sub_(step, alpha=self._lr)
            return
        for name, value in self._parameters.items():
            step = gradient[name]
            if step.shape != value.shape:
                step = torch.cat([step, torch.zeros_like(value[len(step) :])])
            value.grad = step
        self._optimiser.step()
        self._optimiser.zero_grad()

    def state(self) -> dict[str, Any]:
        """Return everything that the next step depends on, except the parameters."""
        return {} if self._optimiser is None else self._optimiser.state_dict()

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a state that :meth:`state` returned."""
        if self._optimiser is not None:
            self._optimiser.load_state_dict(state)
