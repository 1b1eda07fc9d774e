"""The maps by name: what each of them learns from public or generated images, and what it answers.

A map takes images with values in [0, 1] and gives a row of numbers for each.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from pacdp.data.records import Records
from pacdp.errors import InputError
from pacdp.features.deskew import upright
from pacdp.features.hog import oriented_gradients
from pacdp.features.network import Network, Observer, trained_network
from pacdp.features.patches import Patches, learned_patches
from pacdp.features.scattering import scattering
from pacdp.tasks import Classification
from pacdp.validation import meant

Map = Callable[[Tensor], Tensor]

# Every setting of a map, and what it is unless told. All are whole numbers.
SETTINGS: dict[str, dict[str, int]] = {
    "plain": {},
    "gradients": {"cell": 4, "directions": 8, "upright": 0},
    "scattering": {"scales": 2, "directions": 8, "upright": 0},
    "patches": {"filters": 256, "size": 6, "upright": 0},
    "combined": {"cell": 4, "directions": 8, "filters": 256, "size": 6, "upright": 0},
    "network": {"width": 24, "epochs": 12, "early": 0, "upright": 0},
}
# Records that are computed together.
AT_ONCE = 250


class Combined(nn.Module):
    """Oriented gradients and the answers of patches, each part with the same total spread.

    >>> both = Combined(Patches(channels=1, filters=5, size=6), cell=4, directions=8)
    >>> [part.shape[1] for part in both.parts(torch.zeros(2, 1, 28, 28))]
    [392, 40]
    """

    spreads: Tensor

    def __init__(self, patches: Patches, *, cell: int, directions: int) -> None:
        super().__init__()
        self.patches = patches
        self._cell, self._directions = cell, directions
        self.register_buffer("spreads", torch.ones(2))

    def forward(self, images: Tensor) -> Tensor:
        """One row of numbers for each image."""
        parts = zip(self.parts(images), self.spreads, strict=True)
        return torch.cat([part / spread for part, spread in parts], dim=1)

    def parts(self, images: Tensor) -> list[Tensor]:
        """The two rows by themselves."""
        edges = oriented_gradients(images, cell=self._cell, directions=self._directions)
        return [edges, self.patches(images)]


def all_settings(name: str, given: Mapping[str, float]) -> dict[str, int]:
    """All settings of a map; one that it does not have is refused.

    >>> all_settings("gradients", {"cell": 7.0})
    {'cell': 7, 'directions': 8, 'upright': 0}
    """
    known = SETTINGS[name]
    for setting, value in given.items():
        if setting not in known:
            raise InputError(
                f"representation {name}: has no setting {setting}; {meant(setting, known)}there "
                f"are {', '.join(known) or 'none'}"
            )
        switch = setting in ("early", "upright")
        if not float(value).is_integer() or value < (0 if switch else 1) or (switch and value > 1):
            allowed = "0 or 1" if switch else "a whole number, at least 1"
            raise InputError(f"representation.settings.{setting} = {value:g}: must be {allowed}")
    return known | {setting: int(value) for setting, value in given.items()}


def learned(
    name: str,
    settings: Mapping[str, int],
    records: Records,
    classes: int,
    *,
    seed: int,
    observe: Observer,
) -> nn.Module | None:
    """What a map learns, from public records or from generated ones; None where it is a formula.

    >>> images = Records(features=np.zeros((9, 1, 28, 28), np.uint8), labels=np.zeros(9, np.int64))
    >>> told = lambda words, done, total: None
    >>> learned("gradients", all_settings("gradients", {}), images, 0, seed=0, observe=told)
    """
    if name == "network":
        images, labels = records.tensors(Classification(classes))
        return trained_network(
            torch.cat(list(_straight(settings, images))),
            *(labels, classes),
            width=settings["width"],
            epochs=settings["epochs"],
            seed=seed,
            observe=observe,
        )
    if name not in ("patches", "combined"):
        return None
    images = torch.cat(list(_straight(settings, records.inputs())))
    patches = learned_patches(images, filters=settings["filters"], size=settings["size"], seed=seed)
    if name == "patches":
        return patches
    both = Combined(patches, cell=settings["cell"], directions=settings["directions"])
    answers = [both.parts(some) for some in images.split(AT_ONCE)]
    for number in range(2):
        total = torch.cat([answer[number] for answer in answers]).var(0).sum().sqrt()
        both.spreads[number] = total
    return both.eval()


def restored(
    name: str, settings: Mapping[str, int], channels: int, state: Mapping[str, Tensor]
) -> nn.Module | None:
    """What :func:`learned` gave, from its numbers.

    >>> chosen = all_settings("patches", {"filters": 5})
    >>> again = restored("patches", chosen, 1, Patches(1, 5, 6).state_dict())
    >>> sorted(again.state_dict())
    ['shift', 'weight']
    """
    module: nn.Module
    if name == "network":
        module = Network(channels, len(state["head.bias"]), width=settings["width"])
    elif name in ("patches", "combined"):
        module = Patches(channels, settings["filters"], settings["size"])
        if name == "combined":
            module = Combined(module, cell=settings["cell"], directions=settings["directions"])
    else:
        return None
    module.load_state_dict(dict(state))
    return module.eval()


def map_of(name: str, settings: Mapping[str, int], module: nn.Module | None) -> Map:
    """The map, with what it has learned.

    >>> map_of("plain", {}, None)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 784])
    """
    formulas: dict[str, Map] = {
        "plain": lambda images: images.flatten(1),
        "gradients": lambda images: oriented_gradients(
            images, cell=settings["cell"], directions=settings["directions"]
        ),
        "scattering": lambda images: scattering(
            images, scales=settings["scales"], directions=settings["directions"]
        ),
    }
    if isinstance(module, Network):
        chosen: Map = partial(module.features, early=bool(settings["early"]))
    else:
        chosen = formulas[name] if module is None else module
    return (lambda images: chosen(upright(images))) if settings.get("upright") else chosen


def answers(chosen: Map, records: Records) -> Iterator[Tensor]:
    """What a map answers to records, some at a time.

    >>> images = Records(features=np.zeros((300, 1, 8, 8), np.uint8), labels=np.zeros(300))
    >>> [len(some) for some in answers(map_of("plain", {}, None), images)]
    [250, 50]
    """
    for start in range(0, len(records), AT_ONCE):
        some = records.take(np.arange(start, min(start + AT_ONCE, len(records))))
        with torch.no_grad():
            yield chosen(some.inputs())


def _straight(settings: Mapping[str, int], images: Tensor) -> Iterator[Tensor]:
    """Images as the map sees them, upright where it wants them so."""
    for some in images.split(AT_ONCE):
        yield upright(some) if settings.get("upright") else some
