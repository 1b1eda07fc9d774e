"""What goes over the wire between a server and a client."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pacdp.federation.local_model import Tensors
from pacdp.methods import Public


@dataclass(frozen=True)
class Broadcast:
    """What the server sends: the round, the model, and what the method keeps."""

    round: int
    model: Tensors
    public: Public = field(default_factory=dict)
    """What the method keeps on the server; nothing a client must believe."""


@dataclass(frozen=True)
class Reply:
    """What a client sends: how its noised local training moved the model."""

    client: int
    round: int
    update: Tensors
    released: Sequence[Tensors] = ()
    """What else was released, if the method needs it."""
    noise_scale: float = 1.0
    """Its noise over that of even spending: known from who took part when."""
