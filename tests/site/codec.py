"""A minimal codec for the tests of a site: JSON header, safetensors, Ed25519."""

import json
import struct

import torch
from safetensors.torch import load, save

from pacdp.federation.messages import Broadcast
from pacdp.site.codec import Code, WireError, plan_digest

START = struct.Struct(">5sBBI")


class JsonCodec:
    def __init__(self, local_model):
        self.plan = local_model.plan
        self.digest = plan_digest(self.plan)
        self.largest_broadcast = 2**16 + 8 * local_model.coordinates

    def encode_broadcast(self, broadcast, *, sign, **changes):
        header = {
            "run": self.plan.run,
            "plan": self.digest,
            "round": broadcast.round,
            "state": broadcast.shared_state,
        }
        return write(1, header | changes, save(broadcast.model), sign)

    def decode_broadcast(self, frame, *, client, verify):
        header, payload = read(1, frame, verify)
        if set(header) != {"run", "plan", "round", "state"}:
            raise WireError(Code.MALFORMED)
        if header["run"] != self.plan.run:
            raise WireError(Code.RUN)
        if header["plan"] != self.digest:
            raise WireError(Code.PLAN)
        try:
            model = load(payload)
        except Exception:
            raise WireError(Code.WEIGHTS) from None
        return Broadcast(header["round"], model, header["state"])

    def encode_reply(self, reply, *, broadcast, asked, head, sign):
        tensors = {f"update.{name}": value for name, value in reply.update.items()}
        for number, part in enumerate(reply.released):
            tensors |= {f"{number}.{name}": value for name, value in part.items()}
        header = {
            "round": reply.round,
            "client": reply.client,
            "noise_scale": reply.noise_scale,
            "broadcast": asked,
            "head": head,
        }
        return write(2, header, save(tensors), sign)

    def decode_reply(self, frame, *, verify):
        header, payload = read(2, frame, verify)
        return header, load(payload)

    def encode_refusal(self, code, *, client, round, sign):  # noqa: A002
        header = {"client": client, "code": code, "round": round, "run": self.plan.run}
        return write(3, header, b"", sign)


def write(kind, header, payload, sign):
    text = json.dumps(header, sort_keys=True).encode()
    message = START.pack(b"PACDP", 1, kind, len(text)) + text + payload
    return message + sign(message)


def read(kind, frame, verify):
    if len(frame) < START.size + 64:
        raise WireError(Code.MALFORMED)
    magic, version, actual, size = START.unpack_from(frame)
    if (magic, version, actual) != (b"PACDP", 1, kind) or START.size + size > len(frame) - 64:
        raise WireError(Code.MALFORMED)
    if not verify(frame[-64:], frame[:-64]):
        raise WireError(Code.SIGNATURE)
    try:
        header = json.loads(frame[START.size : START.size + size])
    except ValueError:
        raise WireError(Code.MALFORMED) from None
    if not isinstance(header, dict):
        raise WireError(Code.MALFORMED)
    return header, frame[START.size + size : -64]


def refusal_code(frame):
    """The code of a refusal; None for a reply."""
    kind, size = frame[6], START.unpack_from(frame)[3]
    if kind == 2:
        return None
    assert kind == 3
    return json.loads(frame[START.size : START.size + size])["code"]


def same(first, second):
    return all(torch.equal(first[name], second[name]) for name in first)
