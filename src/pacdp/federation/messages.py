"""The messages between a server and a client."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pacdp.federation.local_model import Tensors
from pacdp.methods import SharedState


@dataclass(frozen=True)
class Broadcast:
    """The server's message: the round, the model, and the method's shared state."""

    round: int
    model: Tensors
    shared_state: SharedState = field(default_factory=dict)
    """The method's state on the server, which a client does not trust."""


@dataclass(frozen=True)
class Reply:
    """A client's answer: the change of the model by its noised local training."""

    client: int
    round: int
    update: Tensors
    released: Sequence[Tensors] = ()
    """Further released values, if the method needs them."""
    noise_scale: float = 1.0
    """The noise relative to even spending, which follows from who took part when."""


@dataclass(frozen=True)
class Refusal:
    """A client's refusal: its plan or budget is used up, and it has sent nothing else."""

    client: int
    reason: str


Answers = Mapping[int, Reply | Refusal]
"""The answers of the clients that were asked. Those that are missing have failed."""
