"""Layers that cannot be trained privately, and replacements for them."""

import copy

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from pacdp.errors import InputError

_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_TIME_FIRST = (nn.RNNBase, nn.MultiheadAttention)


def require_private(module: nn.Module) -> None:
    """Refuse modules that mix examples or keep statistics of them, naming the first layer.

    >>> require_private(nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4)))
    Traceback (most recent call last):
    ...
    pacdp.errors.InputError: layer 1 (BatchNorm1d): mixes examples of a batch, so no ...
    """
    for name, layer in module.named_modules():
        kind = f"layer {name or '(the model)'} ({type(layer).__name__})"
        if isinstance(layer, _BatchNorm):
            raise InputError(
                f"{kind}: mixes examples of a batch, so no example has a gradient of its own; "
                "pacdp.clipping.without_batch_norm(model) replaces it by GroupNorm"
            )
        if isinstance(layer, _INSTANCE_NORMS) and layer.track_running_stats:
            raise InputError(
                f"{kind}: keeps running statistics of private examples; "
                "use track_running_stats=False"
            )
        if isinstance(layer, _TIME_FIRST) and not layer.batch_first:
            raise InputError(
                f"{kind}: expects time before examples, so examples cannot be separated; "
                "use batch_first=True"
            )


def without_batch_norm(module: nn.Module, *, groups: int = 32) -> nn.Module:
    """Return a copy of the module with every BatchNorm replaced by GroupNorm.

    It has as many groups as asked for, or fewer if they do not divide the channels. BatchNorm1d
    gets one group, since normalising a group of one value would leave nothing of it. Scale and
    shift are kept; running statistics are not, since they were computed from examples.

    >>> without_batch_norm(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))[1]
    GroupNorm(8, 8, eps=1e-05, affine=True...)
    """
    if isinstance(module, _BatchNorm):
        return _group_norm(module, groups)
    result = copy.deepcopy(module)
    for name, layer in list(result.named_modules()):
        if isinstance(layer, _BatchNorm):
            parent, _, child = name.rpartition(".")
            setattr(result.get_submodule(parent), child, _group_norm(layer, groups))
    return result


def _group_norm(layer: _BatchNorm, groups: int) -> nn.GroupNorm:
    channels = layer.num_features
    most = 1 if isinstance(layer, nn.BatchNorm1d) else min(groups, channels)
    divisor = max(number for number in range(1, most + 1) if channels % number == 0)
    replacement = nn.GroupNorm(divisor, channels, eps=layer.eps, affine=layer.affine)
    if layer.affine:
        with torch.no_grad():
            replacement.weight.copy_(layer.weight)
            replacement.bias.copy_(layer.bias)
    return replacement.to(next(layer.parameters(), torch.empty(0)).device)
