"""Messages as bytes: what was sent arrives, and nothing else is accepted."""

import contextlib
import hashlib
import json
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

import pacdp
from pacdp.curve import Curve
from pacdp.data import load_dataset, partition_records
from pacdp.data.strokes import generate_strokes
from pacdp.errors import InputError
from pacdp.experiments.cost import bytes_per_round
from pacdp.federation import (
    Broadcast,
    BudgetSchedule,
    Client,
    LocalModel,
    Model,
    Optimiser,
    Privacy,
    Reply,
    Server,
    Training,
    run_rounds,
)
from pacdp.federation.client import simulated_noise
from pacdp.federation.messages import Refusal
from pacdp.federation.uploads import LARGEST_WHOLE, coarse_step, coarsen_update, planned_size
from pacdp.federation.wire import Code, Kind, Wire, WireError, frame_digest, plan_digest
from pacdp.federation.wire.frames import canonical_json, read_frame, write_frame
from pacdp.federation.wire.tensors import (
    decode_steps,
    decode_values,
    decode_weights,
    encode_steps,
    encode_values,
    encode_weights,
    largest_steps,
    largest_weights,
)
from pacdp.methods import build_method
from pacdp.tasks import Classification
from tests.plans import plan_for, plan_of

HEART = load_dataset("heart")
HOSPITALS = partition_records(HEART, "natural")
RECORDS = HOSPITALS.client_records(HEART)
CURVE = {"curve": Curve(family="power", coefficients=(0.5, 0.25))}
HEAD = "0" * 64
SHAPES_OF_HEART = {"1.weight": (2, 13), "1.bias": (2,)}


def sign(message):
    return hashlib.sha512(b"a secret" + message).digest()


def verify(signature, message):
    return signature == sign(message)


def trust(signature, message):
    """Accept any signature, so that a test reaches what comes after it."""
    return True


def plan(**changes):
    parts = {
        "method": build_method("pac-dp", CURVE),
        "training": Training(rounds=5, local_epochs=2, batch=64, upload="coarse"),
        "privacy": Privacy(epsilon=(0.5, 1.0, 2.0, 5.0)),
    }
    return plan_for(HEART, HOSPITALS, **parts | changes)


class OverTheWire:
    """A transport that moves bytes: every message is written, and read on the other side."""

    def __init__(self, made):
        self.wire = Wire.for_model(LocalModel(made))
        self.clients = [
            Client(number, made, records, noise=simulated_noise(made.seed, number))
            for number, records in enumerate(RECORDS)
        ]
        self.received = []

    def ask(self, broadcast, client_ids):
        frame = self.wire.encode_broadcast(broadcast, sign=sign)
        assert len(frame) <= self.wire.largest_broadcast
        terms = {"broadcast": broadcast, "broadcast_digest": frame_digest(frame)}
        answers = {}
        for client in client_ids:
            back = self.site(client, frame)
            assert len(back) <= self.wire.largest_answer(client)
            self.received.append(
                self.wire.decode_answer(back, client=client, verify=verify, **terms)
            )
            answers[client] = self.received[-1].reply
        return answers

    def site(self, client, frame):
        """What happens at the client's, which knows the bytes and the plan only."""
        broadcast = self.wire.decode_broadcast(frame, client=client, verify=verify)
        reply = self.clients[client].answer(broadcast)
        terms = {"broadcast": broadcast, "broadcast_digest": frame_digest(frame)}
        return self.wire.encode_reply(reply, head=HEAD, sign=sign, **terms)


class Directly(OverTheWire):
    """The same clients without bytes."""

    def ask(self, broadcast, client_ids):
        return {client: self.clients[client].answer(broadcast) for client in client_ids}


CASES = [
    {},
    {"training": Training(rounds=5, local_epochs=2, batch=64)},
    {"method": build_method("aqc")},
    {"method": build_method("cgm-median", {"speed": 0.7})},
    {"method": build_method("nbafl-original")},
    {"method": build_method("fedavg")},
    {"privacy": Privacy(epsilon=1.0, spending=BudgetSchedule(policy="replan"))},
    {
        "training": Training(
            rounds=3, local_steps=2, optimiser=Optimiser(name="adam"), upload="coarse"
        )
    },
    {
        "training": Training(
            rounds=3,
            local_steps=2,
            clients_per_round=2,
            optimiser=Optimiser(name="momentum"),
            upload="coarse",
        )
    },
    {"model": Model(name="mlp", settings={"hidden": 5})},
]


@pytest.mark.parametrize("changes", CASES)
def test_a_run_over_the_wire_is_the_run_in_one_process_bit_for_bit(changes):
    made = plan(**changes)
    models = []
    for transport in (OverTheWire(made), Directly(made)):
        server = Server(made, LocalModel(made).state(), noise=simulated_noise(made.seed, -1))
        run_rounds(server, transport)
        models.append(server.model)
    for name, value in models[0].items():
        assert value.numpy().tobytes() == models[1][name].numpy().tobytes()


# Sizes.


def reply_with_pictures(model, epsilon):
    """A client's reply, after training on pictures like MNIST's as the experiment mnist does."""
    records = generate_strokes(records=1200).train
    made = plan_of(
        method=build_method("fixed"),
        sizes={"a": len(records)},
        shape=(1, 28, 28),
        task=Classification(10),
        model=Model(name=model),
        training=Training(
            rounds=20, local_epochs=1, batch=128 if model == "cnn" else "full", upload="coarse"
        ),
        privacy=Privacy(epsilon=epsilon),
    )
    client = Client(0, made, records, noise=simulated_noise(0, 0))
    broadcast = Broadcast(0, client.local_model.state())
    wire = Wire.for_model(client.local_model)
    frame = wire.encode_broadcast(broadcast, sign=sign)
    terms = {"broadcast": broadcast, "broadcast_digest": frame_digest(frame)}
    return wire, client.answer(broadcast), terms


@pytest.mark.parametrize("model", ["logistic", "mlp", "cnn"])
@pytest.mark.parametrize("epsilon", [0.1, 5.0])
def test_models_of_pictures_take_a_sixth_of_single_precision(model, epsilon):
    wire, reply, terms = reply_with_pictures(model, epsilon)
    frame = wire.encode_reply(reply, head=HEAD, sign=sign, **terms)
    received = wire.decode_reply(frame, client=0, verify=verify, **terms)
    for name, value in reply.update.items():
        assert torch.equal(value, received.reply.update[name])
    assert len(frame) <= 4 * wire.values / 6
    assert 8 * received.payload_bytes / wire.values < 4.3
    assert wire.planned_upload(0) == pytest.approx(received.payload_bytes, rel=0.05)


def test_the_weights_of_heart_take_half_and_a_small_header():
    made = plan()
    transport = OverTheWire(made)
    server = Server(made, LocalModel(made).state())
    run_rounds(server, transport)
    assert transport.wire.values == 28
    for received in transport.received:
        assert received.payload_bytes <= 4 * 28 / 2
        planned = transport.wire.planned_upload(received.reply.client)
        assert abs(received.payload_bytes - planned) <= 8
    reply = Reply(3, 4, transport.received[0].reply.update, noise_scale=0.12345678901234567)
    frame = transport.wire.encode_reply(
        reply, broadcast=Broadcast(4, {}), broadcast_digest=HEAD, head=HEAD, sign=sign
    )
    (header,) = struct.unpack(">I", frame[7:11])
    assert header <= 256


def test_exact_uploads_are_planned_but_for_names_and_shapes():
    made = plan(training=Training(rounds=2, local_steps=1))
    transport = OverTheWire(made)
    run_rounds(Server(made, LocalModel(made).state()), transport)
    for received in transport.received:
        assert transport.wire.planned_upload(received.reply.client) == 4 * 28
        assert received.payload_bytes == len(encode_weights(received.reply.update, SHAPES_OF_HEART))


def test_the_cost_of_a_plan_counts_small_uploads():
    coarse, exact = (
        plan(training=Training(rounds=2, local_steps=1, upload=upload))
        for upload in ("coarse", "exact")
    )
    assert bytes_per_round(exact, 28) == 2 * 4 * 28 * 4
    assert bytes_per_round(coarse, 28) == 4 * (33 + 28 * 4)
    fewer = plan(training=Training(rounds=2, local_steps=1, clients_per_round=1, upload="coarse"))
    one = 4 * 7850 + planned_size(fewer, 0, 7850)
    assert bytes_per_round(fewer, 7850) == pytest.approx(one, rel=1e-3)


# Round trips.

SHAPES = st.dictionaries(
    st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__"),
    st.lists(st.integers(1, 4), max_size=3).map(tuple),
    min_size=1,
    max_size=4,
)


def draw(shapes, seed, scale):
    random = np.random.default_rng(seed)
    return {
        name: torch.from_numpy(random.normal(0, scale, shape).astype(np.float32)).reshape(shape)
        for name, shape in shapes.items()
    }


@given(SHAPES, st.integers(0, 99), st.sampled_from([1e-6, 1.0, 1e20]))
def test_weights_arrive_as_they_were(shapes, seed, scale):
    values = draw(shapes, seed, scale)
    written = encode_weights(values, shapes)
    assert len(written) <= largest_weights(shapes)
    read = decode_weights(written, shapes)
    assert list(read) == list(shapes)
    assert all(torch.equal(read[name], value) for name, value in values.items())
    once = decode_values(encode_values([values, values], [shapes] * 2), [shapes] * 2)
    assert all(torch.equal(once[1][name], value) for name, value in values.items())


@given(SHAPES, st.integers(0, 99), st.floats(1e-9, 1e9), st.sampled_from([0.1, 4, 300, 1e5, 1e9]))
def test_whole_numbers_of_steps_arrive_as_they_were(shapes, seed, noise, ratio):
    step = coarse_step(noise)
    values = coarsen_update(draw(shapes, seed, ratio * step), step)
    written = encode_steps(values, shapes, step)
    read = decode_steps(written, shapes, step)
    for name, value in values.items():
        assert value.numpy().tobytes() == read[name].numpy().tobytes()


@given(st.lists(st.integers(-LARGEST_WHOLE, LARGEST_WHOLE), min_size=1, max_size=50))
def test_all_whole_numbers_that_are_allowed(whole):
    values = {"w": torch.tensor(whole, dtype=torch.float32)}
    written = encode_steps(values, {"w": (len(whole),)}, 1.0)
    assert len(written) <= largest_steps(len(whole))
    assert decode_steps(written, {"w": (len(whole),)}, 1.0)["w"].tolist() == whole


# What is refused.


def code_of(call, *args, **kwargs):
    with pytest.raises(WireError) as refused:
        call(*args, **kwargs)
    assert str(refused.value) == f"message refused: {refused.value.code}"
    return refused.value.code


MADE = plan(method=build_method("cgm-median"))
TRANSPORT = OverTheWire(MADE)
WIRE = TRANSPORT.wire
ASKED = Server(MADE, LocalModel(MADE).state()).broadcast(0)
FRAME = WIRE.encode_broadcast(ASKED, sign=sign)
TERMS = {"broadcast": ASKED, "broadcast_digest": frame_digest(FRAME)}
BACK = TRANSPORT.site(0, FRAME)


def read_broadcast(frame, check=trust):
    return WIRE.decode_broadcast(frame, client=0, verify=check)


def read_answer(frame, check=trust):
    return WIRE.decode_answer(frame, client=0, verify=check, **TERMS)


def rewrite(frame, payload=None, text=None, **changes):
    """Write a frame again with another header or payload, rightly signed."""
    kind = Kind(frame[6])
    limits = {"largest_header": 2**20, "largest_payload": 2**20}
    old = read_frame(frame, kind, verify=verify, **limits)
    payload = old.payload if payload is None else payload
    if text is None:
        header = {k: v for k, v in (old.header | changes).items() if v is not ...}
        return write_frame(kind, header, payload, sign=sign)
    message = struct.pack(">5sBBI", b"PACDP", 1, kind, len(text)) + text + payload
    return message + sign(message)


def test_every_changed_byte_is_refused():
    for frame, read in ((FRAME, read_broadcast), (BACK, read_answer)):
        read(frame, verify)
        for place in range(len(frame)):
            changed = bytearray(frame)
            changed[place] ^= 1 << place % 8
            assert code_of(read, bytes(changed), verify) in (Code.MALFORMED, Code.SIGNATURE)
        for length in range(len(frame)):
            assert code_of(read, frame[:length], verify) in (Code.MALFORMED, Code.SIGNATURE)


@settings(max_examples=400, deadline=None)
@given(
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=4),
    st.integers(-40, 5),
    st.binary(max_size=30),
)
def test_damage_that_somebody_has_signed_is_refused_or_read(asked, flips, cut, added):
    frame, read = (FRAME, read_broadcast) if asked else (BACK, read_answer)
    damaged = bytearray(frame)
    for place, value in flips:
        damaged[place % len(damaged)] = value
    damaged = bytes(damaged[:cut] if cut < 0 else damaged) + added
    with contextlib.suppress(WireError):
        read(damaged)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300), st.sampled_from([1, 2, 3]), st.integers(0, 400))
def test_anything_at_all_is_refused(data, kind, length):
    start = struct.pack(">5sBBI", b"PACDP", 1, kind, length)
    for frame in (data, start + data, start + data + bytes(64)):
        for read in (read_broadcast, read_answer):
            assert code_of(read, frame) in (Code.MALFORMED, Code.SIGNATURE)


HEADER = json.loads(FRAME[11 : 11 + struct.unpack(">I", FRAME[7:11])[0]])


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"null",
        b"{}",
        b"\xff",
        b'{"a":',
        json.dumps(HEADER).encode(),
        canonical_json(HEADER) + b" ",
        canonical_json(HEADER)[:-1] + b',"run":"x"}',
        b'{"length":1,"length":1}',
        b'{"round":NaN}',
        b'{"round":1e999}',
        b'{"round":-0}',
        b'{"round":1.00}',
        b'{"state":"\\ud800"}',
        b"[" * 60_000,
        b'{"state":' * 7_000,
        b'{"round":' + b"9" * 5_000 + b"}",
        canonical_json(HEADER | {"more": 1}),
        canonical_json(HEADER | {"round": True}),
        canonical_json(HEADER | {"round": 0.0}),
        canonical_json(HEADER | {"round": None}),
        canonical_json(HEADER | {"run": 3}),
        canonical_json(HEADER | {"state": []}),
        canonical_json(HEADER | {"length": -1}),
        canonical_json(HEADER | {"length": 2**70}),
    ],
)
def test_headers_in_any_other_form_are_refused(text):
    assert code_of(read_broadcast, rewrite(FRAME, text=text)) is Code.MALFORMED


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"run": "another"}, Code.RUN),
        ({"plan": HEAD}, Code.PLAN),
        ({"round": 5}, Code.ROUND),
        ({"round": -1}, Code.ROUND),
        ({"round": 10**40}, Code.ROUND),
        ({"state": {}}, Code.STATE),
        ({"state": {"bounds": [1.0] * 4, "more": 1.0}}, Code.STATE),
        ({"state": {"bounds": []}}, Code.STATE),
        ({"state": {"bounds": [-1.0] * 4}}, Code.STATE),
        ({"state": {"bounds": [10**400] * 4}}, Code.STATE),
        ({"state": {"bounds": "text"}}, Code.STATE),
        ({"state": {"bounds": {"0": 1}}}, Code.STATE),
        ({"run": ...}, Code.MALFORMED),
    ],
)
def test_what_a_broadcast_says_is_compared_with_the_plan(changes, code):
    assert code_of(read_broadcast, rewrite(FRAME, **changes)) is code


def test_a_client_that_takes_no_part_in_a_round_refuses_it():
    training = Training(rounds=4, local_steps=1, clients_per_round=1)
    made = plan(training=training)
    wire = Wire.for_model(LocalModel(made))
    frame = wire.encode_broadcast(Broadcast(0, LocalModel(made).state()), sign=sign)
    (asked,) = made.participants(0)
    wire.decode_broadcast(frame, client=asked, verify=verify)
    code = code_of(wire.decode_broadcast, frame, client=(asked + 1) % 4, verify=verify)
    assert code is Code.PARTICIPANT


def arrays(**changes):
    values = {name: value.numpy() for name, value in ASKED.model.items()}
    return {name: value for name, value in (values | changes).items() if value is not None}


def with_nan():
    weight = ASKED.model["1.weight"].numpy().copy()
    weight[0, 3] = np.nan
    return weight


def claims(header):
    """Safetensors whose header is this text."""
    return struct.pack("<Q", len(header)) + header + bytes(112)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        bytes(300),
        save(arrays(more=np.zeros(1, np.float32))),
        save(arrays(**{"1.bias": None})),
        save(arrays(**{"1.bias": np.zeros(3, np.float32)})),
        save(arrays(**{"1.bias": np.zeros((2, 1), np.float32)})),
        save(arrays(**{"1.bias": np.zeros(2, np.int32)})),
        save(arrays(**{"1.bias": np.zeros(1, np.float64)})),
        save(arrays(**{"1.bias": np.array([np.inf, 0], np.float32)})),
        save(arrays(**{"1.weight": with_nan()})),
        save(arrays())[:-4],
        save(arrays()) + bytes(4),
        claims(b"{}"),
        claims(b'{"1.bias":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,112]}}'),
        claims(b'{"1.bias":{"dtype":"F32","shape":[0,9223372036854775807],"data_offsets":[0,0]}}'),
        claims(b'{"1.bias":{"dtype":"F32","shape":[28],"data_offsets":[0,999999999999]}}'),
        claims(b'{"1.bias":{"dtype":"F99","shape":[28],"data_offsets":[0,112]}}'),
        claims(b'{"1.bias":{"dtype":"F32","shape":[-28],"data_offsets":[0,112]}}'),
        struct.pack("<Q", 2**63) + bytes(112),
    ],
)
def test_weights_that_are_not_the_models_are_refused(payload):
    frame = rewrite(FRAME, payload=payload, length=len(payload))
    assert code_of(read_broadcast, frame) is Code.WEIGHTS


def test_what_is_too_long_is_refused_before_it_is_read():
    def never(signature, message):
        raise AssertionError("was looked at")

    for frame, read, limit in (
        (FRAME, read_broadcast, WIRE.largest_broadcast),
        (BACK, read_answer, WIRE.largest_answer(0)),
    ):
        assert code_of(read, frame + bytes(limit), never) is Code.MALFORMED


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"client": 1}, Code.PARTICIPANT),
        ({"round": 1}, Code.ROUND),
        ({"broadcast": HEAD}, Code.ROUND),
        ({"noise_scale": 0.5}, Code.MALFORMED),
        ({"noise_scale": 1}, Code.MALFORMED),
        ({"noise_scale": "1"}, Code.MALFORMED),
        ({"head": "F" * 64}, Code.MALFORMED),
        ({"head": "0" * 63}, Code.MALFORMED),
        ({"head": HEAD + "\n"}, Code.MALFORMED),
        ({"lengths": []}, Code.MALFORMED),
        ({"lengths": [1, 2]}, Code.MALFORMED),
        ({"lengths": [True, 2]}, Code.MALFORMED),
        ({"lengths": [-1, 2]}, Code.MALFORMED),
        ({"lengths": [0, 0, 0]}, Code.MALFORMED),
        ({"run": MADE.run}, Code.MALFORMED),
    ],
)
def test_what_a_reply_says_is_compared_with_the_round(changes, code):
    assert code_of(read_answer, rewrite(BACK, **changes)) is code


@pytest.mark.parametrize("scale", [0.0, -1.0, 1e-7, 1e7, 1e300])
def test_scales_of_the_noise_are_within_limits(scale):
    made = plan(privacy=Privacy(epsilon=1.0, spending=BudgetSchedule(policy="replan")))
    transport = OverTheWire(made)
    broadcast = Broadcast(0, LocalModel(made).state())
    frame = transport.wire.encode_broadcast(broadcast, sign=sign)
    back = transport.site(0, frame)
    terms = {
        "broadcast": broadcast,
        "broadcast_digest": frame_digest(frame),
        "client": 0,
        "verify": verify,
    }
    transport.wire.decode_reply(back, **terms)
    changed = rewrite(back, noise_scale=scale)
    assert code_of(transport.wire.decode_reply, changed, **terms) is Code.MALFORMED


def deflate(raw):
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
    return compressor.compress(raw) + compressor.flush()


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"no deflate",
        deflate(b""),
        deflate(bytes(27)),
        deflate(bytes(29)),
        deflate(bytes(28)) + b"x",
        deflate(bytes(28))[:-1],
        deflate(bytes(27) + b"\x80"),
        deflate(bytes(27) + b"\x80\x00"),
        deflate(bytes(27) + b"\x80\x80\x80\x01"),
        deflate(bytes(27) + b"\xff\xff\x7f"),
        deflate(bytes(10**6)),
    ],
)
def test_whole_numbers_in_any_other_form_are_refused(payload):
    shapes = {"w": (28,)}
    decode_steps(deflate(bytes(28)), shapes, 1.0)
    assert code_of(decode_steps, payload, shapes, 1.0) is Code.WEIGHTS


def test_a_bomb_takes_no_memory():
    bomb = deflate(bytes(200_000_000))
    assert len(bomb) < 300_000
    shapes = {"w": (100_000,)}
    tracemalloc.start()
    try:
        assert code_of(decode_steps, bomb, shapes, 1.0) is Code.WEIGHTS
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("further", [b"", bytes(4), b"\0\0\xc0\x7f"])
def test_further_values_are_as_many_as_planned_and_finite(further):
    steps = MADE.clients[0].steps
    shapes = [{"count": ()}] * steps
    payload = further if len(further) != 4 or not any(further) else further * steps
    assert code_of(decode_values, payload, shapes) is Code.WEIGHTS


def test_what_may_not_be_sent_is_refused_where_it_is_written():
    values, shapes = {"w": torch.zeros(2)}, {"w": (2,)}
    for wrong in (
        {},
        {"v": torch.zeros(2)},
        {"w": torch.zeros(3)},
        {"w": torch.zeros(2).double()},
        {"w": torch.tensor([0.0, torch.nan])},
    ):
        assert code_of(encode_weights, wrong, shapes) is Code.WEIGHTS
        assert code_of(encode_steps, wrong, shapes, 1.0) is Code.WEIGHTS
        assert code_of(encode_values, [wrong], [shapes]) is Code.WEIGHTS
    assert code_of(encode_values, [values], []) is Code.WEIGHTS


def test_a_server_that_cannot_write_its_message_says_so():
    model = LocalModel(MADE).state()
    with pytest.raises(InputError, match="state of cgm-median: cannot be written as JSON"):
        WIRE.encode_broadcast(Broadcast(0, model, {"bounds": torch.ones(4)}), sign=sign)
    with pytest.raises(InputError, match="state of cgm-median: cannot be written as JSON"):
        WIRE.encode_broadcast(Broadcast(0, model, {"bounds": [np.nan]}), sign=sign)
    with pytest.raises(InputError, match="must have at most 65792"):
        WIRE.encode_broadcast(Broadcast(0, model, {"bounds": "x" * 70_000}), sign=sign)
    with pytest.raises(InputError, match="signature: has 3 bytes, must have 64"):
        WIRE.encode_broadcast(ASKED, sign=lambda message: b"abc")
    local_model = LocalModel(MADE)
    local_model.model.double()
    with pytest.raises(InputError, match=r"parameter 1\.weight: is torch\.float64"):
        Wire.for_model(local_model)


# Refusals.


@pytest.mark.parametrize("code", list(Code))
@pytest.mark.parametrize("number", [0, None])
def test_refusals_arrive_with_their_code(code, number):
    frame = WIRE.encode_refusal(code, client=0, round=number, sign=sign)
    assert read_answer(frame, verify) == Refusal(0, code.value)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"client": 1}, Code.PARTICIPANT),
        ({"round": 3}, Code.ROUND),
        ({"run": "x"}, Code.RUN),
        ({"code": "because of record 7"}, Code.MALFORMED),
        ({"code": 3}, Code.MALFORMED),
        ({"round": 0.0}, Code.MALFORMED),
        ({"why": "x"}, Code.MALFORMED),
    ],
)
def test_other_refusals_are_refused(changes, code):
    frame = WIRE.encode_refusal(Code.BUSY, client=0, round=0, sign=sign)
    assert code_of(read_answer, rewrite(frame, **changes)) is code
    assert code_of(read_answer, rewrite(frame, payload=b"more")) is Code.MALFORMED
    assert code_of(read_broadcast, frame) is Code.MALFORMED


def test_the_digest_covers_plan_plug_ins_and_version(monkeypatch):
    assert plan_digest(MADE) == plan_digest(type(MADE).model_validate_json(MADE.model_dump_json()))
    assert plan_digest(MADE) != plan_digest(MADE.model_copy(update={"seed": 1}))
    with_module = plan_digest(MADE, {"my_model": HEAD})
    assert len({plan_digest(MADE), with_module, plan_digest(MADE, {"my_model": "1" * 64})}) == 3
    assert Wire.for_model(LocalModel(MADE), modules={"my_model": HEAD}).digest == with_module
    now = plan_digest(MADE)
    series = ".".join(pacdp.__version__.split(".")[:2])
    monkeypatch.setattr("pacdp.federation.wire.frames.__version__", f"{series}.99")
    assert plan_digest(MADE) == now
    monkeypatch.setattr("pacdp.federation.wire.frames.__version__", "99.0.0")
    assert plan_digest(MADE) != now
