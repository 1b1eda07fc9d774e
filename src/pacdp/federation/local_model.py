"""The model that clients train. One serves any number of clients in turn."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from pacdp.clipping import ClippedGradient
from pacdp.clipping.numerics import check_noise
from pacdp.errors import InputError
from pacdp.federation.plan import Plan
from pacdp.models import build_model

Tensors = dict[str, Tensor]


class LocalModel:
    """A plan's model on a device, with its loss and its clipping.

    ``make_model`` builds a custom model; by default it is the one that the plan names. The weights
    it starts with are the plan's first model.
    """

    def __init__(
        self, plan: Plan, *, device: str = "cpu", make_model: Callable[[], nn.Module] | None = None
    ) -> None:
        self.plan, self.device, self._make_model = plan, device, make_model
        self.model = (make_model() if make_model else named_model(plan)).to(device)
        self.loss = plan.task.loss
        self.gradient = ClippedGradient(
            self.model, self.loss, adjacency=plan.adjacency, unit=plan.unit
        )
        self.parameters = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        self.coordinates = sum(parameter.numel() for parameter in self.parameters.values())
        for client in plan.clients:
            for spec in client.charges:
                check_noise(
                    spec.z / min((b for b in spec.ratios if b), default=1.0), self.coordinates
                )

    def rebuild(self) -> "LocalModel":
        """Build the same model again, with its first weights."""
        return LocalModel(self.plan, device=self.device, make_model=self._make_model)

    def state(self) -> Tensors:
        """Return a copy of the trained parameters."""
        return {name: parameter.detach().clone() for name, parameter in self.parameters.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Load parameters; what does not fit the model is refused by name."""
        if not isinstance(state, Mapping):
            raise InputError(f"model: is {type(state).__name__}, must be tensors by name")
        if set(state) != set(self.parameters):
            odd = sorted(map(str, set(state) ^ set(self.parameters)))[0]
            raise InputError(f"parameter {odd}: is in the model or in what was sent, not in both")
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                value = state[name]
                dense = isinstance(value, Tensor) and value.layout is torch.strided
                if not dense or value.is_meta:
                    raise InputError(f"parameter {name}: is no tensor of numbers")
                if value.shape != parameter.shape or not value.is_floating_point():
                    raise InputError(
                        f"parameter {name}: is {value.dtype} {tuple(value.shape)}, must be "
                        f"{parameter.dtype} {tuple(parameter.shape)}"
                    )
                parameter.copy_(value)


def named_model(plan: Plan) -> nn.Module:
    """Build the model that the plan names, with its first weights."""
    settings = {name: _whole(value) for name, value in plan.model.settings.items()}
    seed = plan.seed if plan.model.seed is None else plan.model.seed
    outputs = plan.task.outputs
    return build_model(plan.model.name, shape=plan.shape, outputs=outputs, seed=seed, **settings)


def _whole(value: float) -> float:
    """Return 16.0, as a file may say, as 16: sizes of layers are whole numbers."""
    return int(value) if float(value).is_integer() else value
