"""The server: broadcasts the model and combines the replies.

Everything here is post-processing of noised values, so it costs no privacy.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pacdp.clipping import Bounded, SystemNoise, release
from pacdp.errors import InputError
from pacdp.federation.client_context import NoiseOf
from pacdp.federation.local_model import Tensors
from pacdp.federation.messages import Answers, Broadcast, Refusal, Reply
from pacdp.federation.optimizers import ParameterOptimizer
from pacdp.federation.plan import Plan
from pacdp.federation.weights import client_weights
from pacdp.validation import FloatArray


@dataclass(frozen=True, kw_only=True)
class RoundOutcome:
    """Who answered in a round, and who did not."""

    round: int
    asked: tuple[int, ...]
    answered: tuple[int, ...]
    refused: tuple[int, ...]
    failed: tuple[int, ...]
    """Clients that sent nothing, or nothing usable."""
    clipping_bound: float | None = None
    """The clipping bound of the round, where it follows noised statistics."""


class Server:
    """The current model, and how it is updated."""

    largest_update = torch.finfo(torch.float32).max
    """Updates with a larger number are left out."""

    def __init__(self, plan: Plan, initial: Tensors, *, noise: NoiseOf | None = None) -> None:
        self.plan = plan
        self._noise = noise or (lambda number: SystemNoise())
        self._broadcast_noise = plan.algorithm.broadcast_noise(
            rounds=plan.rounds, clients=plan.clients, delta=plan.privacy.delta
        )
        self._model = {name: value.clone() for name, value in initial.items()}
        self._optimizer = ParameterOptimizer.of_server(plan.server, self._model)
        self.shared_state = plan.algorithm.initial_state(len(plan.clients))
        self.spoiled: list[int] = []
        self._average: Tensors | None = None
        self._averaged = 0

    def broadcast(self, round: int) -> Broadcast:  # noqa: A002
        """Return what is sent to the clients of a round."""
        model = {name: value.clone() for name, value in self._model.items()}
        if self._broadcast_noise:
            sent = Bounded(values=model, bound=1.0, sensitivity=1.0, adjacency=self.plan.adjacency)
            model = release(sent, z=self._broadcast_noise, divisor=1.0, noise=self._noise(round))
            # Updates are relative to what was sent, so it is the model from now on.
            for name, value in self._model.items():
                value.copy_(model[name])
        return Broadcast(round, model, self.shared_state)

    @property
    def rounds(self) -> int:
        """The planned number of rounds."""
        return self.plan.rounds

    def participants(self, round: int) -> Sequence[int]:  # noqa: A002
        """Return the clients that are asked in a round."""
        return self.plan.participants(round)

    def complete_round(
        self,
        round: int,  # noqa: A002
        asked: Sequence[int],
        answers: Answers,
    ) -> RoundOutcome:
        """Combine the answers of the clients that were asked, and return the outcome."""
        strangers = [who for who, answer in answers.items() if not who == answer.client in asked]
        if strangers:
            raise InputError(f"answers: client {strangers[0]} was not asked in round {round + 1}")
        replies = [answer for answer in answers.values() if isinstance(answer, Reply)]
        if any(reply.round != round for reply in replies):
            raise InputError(f"answers: must be of round {round + 1}")
        bound = self.plan.algorithm.adapted_bound(self.shared_state)
        self.combine(replies)
        self.finish_round(round)
        return RoundOutcome(
            round=round,
            asked=tuple(asked),
            answered=tuple(reply.client for reply in replies),
            refused=tuple(who for who in answers if isinstance(answers[who], Refusal)),
            failed=(*(who for who in asked if who not in answers), *self.spoiled),
            clipping_bound=bound,
        )

    def combine(self, replies: Sequence[Reply]) -> None:
        """Update the model by the weighted mean of the updates; without replies it stays.

        Updates that are not finite would ruin the model for good and are left out; ``spoiled``
        lists the clients that sent them.
        """
        rounds = {reply.round for reply in replies}
        if len(rounds) > 1:
            raise InputError(f"replies: are of rounds {sorted(rounds)}, must be of one")
        if len({reply.client for reply in replies}) < len(replies):
            raise InputError("replies: one client answers twice, must answer once")
        replies = self._usable(replies)
        if replies:
            mean = self._mean_update(replies)
            self._optimizer({name: -value for name, value in mean.items()})
            self.shared_state = self.plan.algorithm.update_state(
                self.shared_state,
                {r.client: (self.plan.clients[r.client], r.released) for r in replies},
            )

    def _usable(self, replies: Sequence[Reply]) -> list[Reply]:
        self.spoiled = [reply.client for reply in replies if not self._is_usable(reply)]
        return [reply for reply in replies if reply.client not in self.spoiled]

    def _is_usable(self, reply: Reply) -> bool:
        scale = reply.noise_scale
        if not isinstance(scale, int | float) or not 0 < scale < math.inf:
            return False
        sent = [reply.update, *reply.released]
        # Comparisons with NaN are false.
        return all(
            bool((value.abs() <= self.largest_update).all())
            for part in sent
            for value in part.values()
        )

    def _mean_update(self, replies: Sequence[Reply]) -> Tensors:
        weights = client_weights(
            self.plan,
            [reply.client for reply in replies],
            round=replies[0].round,
            scales=[reply.noise_scale for reply in replies],
            shared_state=self.shared_state,
        )
        return {name: _weighted_mean(name, replies, weights) for name in self._model}

    def finish_round(self, round: int) -> None:  # noqa: A002
        """Add the model to the average of the last rounds, if the plan asks for one."""
        averaged_rounds = math.ceil(self.plan.server.average_last * self.plan.rounds - 1e-9)
        if round < self.plan.rounds - averaged_rounds:
            return
        self._averaged += 1
        if self._average is None:
            self._average = {name: value.clone() for name, value in self._model.items()}
        for name, value in self._average.items():
            value.lerp_(self._model[name], 1 / self._averaged)

    def state(self) -> dict[str, Any]:
        """Return everything that the next round depends on."""
        return {
            "model": self._model,
            "optimiser": self._optimizer.state(),
            "average": self._average,
            "averaged": self._averaged,
            "public": dict(self.shared_state),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that :meth:`state` returned."""
        for name, value in self._model.items():
            value.copy_(state["model"][name])
        self._optimizer.restore(state["optimiser"])
        self._average, self._averaged = state["average"], state["averaged"]
        self.shared_state = state["public"]

    @property
    def model(self) -> Tensors:
        """The final model: the average of the last rounds, or the last one."""
        chosen = self._model if self._average is None else self._average
        return {name: value.detach().clone() for name, value in chosen.items()}


def _weighted_mean(name: str, replies: Sequence[Reply], weights: FloatArray) -> Tensor:
    """Return the weighted mean of one parameter's updates."""
    total = torch.zeros_like(replies[0].update[name])
    for reply, weight in zip(replies, weights.tolist(), strict=True):
        total.add_(reply.update[name].to(total), alpha=weight)
    return total
