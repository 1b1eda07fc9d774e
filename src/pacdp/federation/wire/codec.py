"""Encoding and decoding the broadcasts, replies and refusals of a plan as signed bytes."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch

from pacdp.errors import InputError
from pacdp.federation.local_model import LocalModel
from pacdp.federation.messages import Broadcast, Refusal, Reply
from pacdp.federation.plan import Plan
from pacdp.federation.uploads import planned_size, upload_step
from pacdp.federation.wire.frames import (
    Code,
    Frame,
    Kind,
    WireError,
    canonical_json,
    frame_kind,
    largest_frame,
    plan_digest,
    read_frame,
    write_frame,
)
from pacdp.federation.wire.tensors import (
    Shapes,
    count_values,
    decode_steps,
    decode_values,
    decode_weights,
    encode_steps,
    encode_values,
    encode_weights,
    largest_steps,
    largest_weights,
)
from pacdp.keys import Sign, Verify

LARGEST_REPLY_HEADER = 320
"""The most bytes of a reply's header, which usually has 210 to 240."""
# Plausible noise scales under uneven spending; replies outside this range are refused.
_SMALLEST_SCALE, _LARGEST_SCALE = 1e-6, 1e6


@dataclass(frozen=True)
class ReceivedReply:
    """A decoded reply."""

    reply: Reply
    head: str
    """The head of the client's ledger after the debit; empty if the method needs no ledger."""
    payload_bytes: int


class Wire:
    """Encodes and decodes the messages of one plan.

    ``shapes`` are those of the model's trained parameters. Both ends compute everything else from
    their own copy of the plan: what arrives is compared with it and never changes it. ``modules``
    are the plug-ins that were accepted with the plan (:func:`plan_digest`).

    The caller provides the functions that sign and verify:

    >>> import hashlib
    >>> from pacdp.federation import Population, Recipe, Server, Training, make_plan
    >>> from pacdp.methods import build_method
    >>> from pacdp.tasks import Classification
    >>> def sign(message): return hashlib.sha512(b"a secret" + message).digest()
    >>> def verify(signature, message): return signature == sign(message)
    >>> plan = make_plan(
    ...     Recipe(training=Training(rounds=10, local_epochs=1)),
    ...     build_method("fixed"),
    ...     Population(sizes={"north": 200}, shape=(13,), task=Classification(2)),
    ... )
    >>> wire = Wire.for_model(LocalModel(plan))
    >>> broadcast = Server(plan, LocalModel(plan).state()).broadcast(0)
    >>> frame = wire.encode_broadcast(broadcast, sign=sign)
    >>> wire.decode_broadcast(frame, client=0, verify=verify).round
    0
    >>> wire.decode_broadcast(frame[:-1] + b"!", client=0, verify=verify)
    Traceback (most recent call last):
    ...
    pacdp.federation.wire.frames.WireError: message refused: signature
    """

    def __init__(
        self, plan: Plan, shapes: Shapes, *, modules: Mapping[str, str] | None = None
    ) -> None:
        self.plan, self.shapes = plan, dict(shapes)
        self.digest = plan_digest(plan, modules)
        self.values = count_values(self.shapes)

    @classmethod
    def for_model(
        cls, local_model: LocalModel, *, modules: Mapping[str, str] | None = None
    ) -> Self:
        """Use the shapes of a model's parameters, which must be in single precision."""
        for name, parameter in local_model.parameters.items():
            if parameter.dtype != torch.float32:
                raise InputError(f"parameter {name}: is {parameter.dtype}, must be torch.float32")
        shapes = {name: tuple(p.shape) for name, p in local_model.parameters.items()}
        return cls(local_model.plan, shapes, modules=modules)

    @property
    def largest_broadcast(self) -> int:
        """The most bytes of a broadcast; a transport need not read more."""
        return largest_frame(header=self._broadcast_header, payload=largest_weights(self.shapes))

    def largest_answer(self, client: int) -> int:
        """Return the most bytes of an answer of a client."""
        return largest_frame(
            header=max(LARGEST_REPLY_HEADER, self._refusal_header),
            payload=self._largest_upload(client),
        )

    def planned_upload(self, client: int, round: int = 0) -> int:  # noqa: A002
        """Estimate the bytes of a client's reply payload from the plan.

        Names and shapes, which an exact update includes, are not counted.
        """
        further = self.plan.algorithm.further_releases(self.plan.clients[client])
        update = planned_size(self.plan, client, self.values, round)
        return update + 4 * sum(map(count_values, further))

    def encode_broadcast(self, broadcast: Broadcast, *, sign: Sign) -> bytes:
        """Encode the broadcast of a round."""
        payload = encode_weights(broadcast.model, self.shapes)
        header = {
            "length": len(payload),
            "plan": self.digest,
            "round": broadcast.round,
            "run": self.plan.run,
            "state": broadcast.shared_state,
        }
        try:
            size = len(canonical_json(header))
        except (TypeError, ValueError) as error:
            raise InputError(
                f"state of {self.plan.method}: cannot be written as JSON ({error})"
            ) from None
        if size > self._broadcast_header:
            raise InputError(
                f"state of {self.plan.method}: the header has {size} bytes, must have at most "
                f"{self._broadcast_header}"
            )
        return write_frame(Kind.BROADCAST, header, payload, sign=sign)

    def decode_broadcast(self, frame: bytes, *, client: int, verify: Verify) -> Broadcast:
        """Decode a broadcast to a client, or refuse it.

        It must be signed, belong to this run, to the accepted plan and to a round in which the
        client takes part, and its weights and state must fit the plan's model and method.
        """
        message = self._read(
            frame,
            Kind.BROADCAST,
            {"length": int, "plan": str, "round": int, "run": str, "state": dict},
            verify=verify,
            header=self._broadcast_header,
            payload=largest_weights(self.shapes),
        )
        header, number = message.header, message.header["round"]
        if header["length"] != len(message.payload):
            raise WireError(Code.MALFORMED)
        if header["run"] != self.plan.run:
            raise WireError(Code.RUN)
        if header["plan"] != self.digest:
            raise WireError(Code.PLAN)
        if not 0 <= number < self.plan.rounds:
            raise WireError(Code.ROUND)
        if client not in self.plan.participants(number):
            raise WireError(Code.PARTICIPANT)
        method = self.plan.algorithm
        if set(header["state"]) != set(method.initial_state(len(self.plan.clients))):
            raise WireError(Code.STATE)
        try:
            method.check_state(header["state"], client)
        except Exception:
            # A plug-in method may raise anything for a state that it does not expect.
            raise WireError(Code.STATE) from None
        return Broadcast(number, decode_weights(message.payload, self.shapes), header["state"])

    def encode_reply(
        self, reply: Reply, *, broadcast: Broadcast, broadcast_digest: str, head: str, sign: Sign
    ) -> bytes:
        """Encode a client's reply to a broadcast, whose frame has the digest ``broadcast_digest``.

        Run and plan are not repeated, because the digest covers a frame that contains them.
        Updates that are not finite are refused.
        """
        further = self.plan.algorithm.further_releases(self.plan.clients[reply.client])
        released = encode_values(reply.released, further)
        # Computed from the values that are sent, as the server will do.
        step = self._step(reply, broadcast)
        update = (
            encode_weights(reply.update, self.shapes)
            if step is None
            else encode_steps(reply.update, self.shapes, step)
        )
        header = {
            "broadcast": broadcast_digest,
            "client": reply.client,
            "head": head,
            "lengths": [len(update), len(released)],
            "noise_scale": float(reply.noise_scale),
            "round": reply.round,
        }
        return write_frame(Kind.REPLY, header, update + released, sign=sign)

    def decode_answer(
        self,
        frame: bytes,
        *,
        client: int,
        broadcast: Broadcast,
        broadcast_digest: str,
        verify: Verify,
    ) -> ReceivedReply | Refusal:
        """Decode a client's answer to a broadcast: a reply or a refusal."""
        if frame_kind(frame) is Kind.REFUSAL:
            return self.decode_refusal(frame, client=client, round=broadcast.round, verify=verify)
        return self.decode_reply(
            frame,
            client=client,
            broadcast=broadcast,
            broadcast_digest=broadcast_digest,
            verify=verify,
        )

    def decode_reply(
        self,
        frame: bytes,
        *,
        client: int,
        broadcast: Broadcast,
        broadcast_digest: str,
        verify: Verify,
    ) -> ReceivedReply:
        """Decode a client's reply to a broadcast; its frame has the ``broadcast_digest``."""
        message = self._read(
            frame,
            Kind.REPLY,
            {
                "broadcast": str,
                "client": int,
                "head": str,
                "lengths": list,
                "noise_scale": float,
                "round": int,
            },
            verify=verify,
            header=LARGEST_REPLY_HEADER,
            payload=self._largest_upload(client),
        )
        header, payload, lengths = message.header, message.payload, message.header["lengths"]
        if header["client"] != client:
            raise WireError(Code.PARTICIPANT)
        if header["round"] != broadcast.round or header["broadcast"] != broadcast_digest:
            raise WireError(Code.ROUND)
        whole = [type(length) is int and length >= 0 for length in lengths]
        known_head = re.fullmatch("([0-9a-f]{64})?", header["head"])
        if whole != [True, True] or sum(lengths) != len(payload) or not known_head:
            raise WireError(Code.MALFORMED)
        scale = header["noise_scale"]
        even = self.plan.privacy.spending.policy == "even"
        if not (scale == 1 if even else _SMALLEST_SCALE <= scale <= _LARGEST_SCALE):
            raise WireError(Code.MALFORMED)
        update, further = payload[: lengths[0]], payload[lengths[0] :]
        planned = self.plan.algorithm.further_releases(self.plan.clients[client])
        reply = Reply(client, broadcast.round, {}, tuple(decode_values(further, planned)), scale)
        step = self._step(reply, broadcast)
        reply.update.update(
            decode_weights(update, self.shapes)
            if step is None
            else decode_steps(update, self.shapes, step)
        )
        return ReceivedReply(reply, header["head"], len(payload))

    def encode_refusal(
        self,
        code: Code,
        *,
        client: int,
        round: int | None,  # noqa: A002
        sign: Sign,
    ) -> bytes:
        """Encode a client's refusal; ``round`` is None if the request could not be decoded."""
        header = {"client": client, "code": code, "round": round, "run": self.plan.run}
        return write_frame(Kind.REFUSAL, header, b"", sign=sign)

    def decode_refusal(
        self,
        frame: bytes,
        *,
        client: int,
        round: int,  # noqa: A002
        verify: Verify,
    ) -> Refusal:
        """Decode a client's refusal of a round; its reason is one of the codes."""
        header = self._read(
            frame,
            Kind.REFUSAL,
            {"client": int, "code": str, "round": (int, type(None)), "run": str},
            verify=verify,
            header=self._refusal_header,
            payload=0,
        ).header
        if header["code"] not in list(Code):
            raise WireError(Code.MALFORMED)
        if header["run"] != self.plan.run:
            raise WireError(Code.RUN)
        if header["client"] != client:
            raise WireError(Code.PARTICIPANT)
        if header["round"] not in (None, round):
            raise WireError(Code.ROUND)
        return Refusal(client, header["code"])

    @property
    def _broadcast_header(self) -> int:
        """The most bytes of a broadcast's header; a state may contain a number per client."""
        return 2**16 + 64 * len(self.plan.clients)

    @property
    def _refusal_header(self) -> int:
        """The most bytes of a refusal's header, which contains the name of the run."""
        return 128 + len(canonical_json(self.plan.run))

    def _largest_upload(self, client: int) -> int:
        further = self.plan.algorithm.further_releases(self.plan.clients[client])
        update = max(largest_weights(self.shapes), largest_steps(self.values))
        return update + 4 * sum(map(count_values, further))

    def _step(self, reply: Reply, broadcast: Broadcast) -> float | None:
        return upload_step(
            *(self.plan, reply.client, reply.round),
            scale=reply.noise_scale,
            shared_state=broadcast.shared_state,
            released=reply.released,
        )

    def _read(
        self,
        frame: bytes,
        kind: Kind,
        fields: dict[str, Any],
        *,
        verify: Verify,
        header: int,
        payload: int,
    ) -> Frame:
        """Read a frame whose header has exactly these fields of these types."""
        message = read_frame(
            frame, kind, verify=verify, largest_header=header, largest_payload=payload
        )
        if set(message.header) != set(fields):
            raise WireError(Code.MALFORMED)
        for name, allowed in fields.items():
            kinds: Collection[type] = allowed if isinstance(allowed, tuple) else (allowed,)
            # isinstance would accept True as an int.
            if type(message.header[name]) not in kinds:
                raise WireError(Code.MALFORMED)
        return message
