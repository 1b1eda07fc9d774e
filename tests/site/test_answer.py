"""A site in this process: each round once, everything checked before it is paid."""

import hashlib
import json
import shutil
import sqlite3
from contextlib import closing
from datetime import datetime, timedelta
from functools import partial

import numpy as np
import pytest
import torch

from pacdp.clipping import SystemNoise
from pacdp.data import load_dataset, partition_records
from pacdp.data.records import Records
from pacdp.errors import InputError
from pacdp.features import Features, extract_features
from pacdp.federation import (
    Client,
    LocalModel,
    Population,
    Privacy,
    Recipe,
    Training,
    make_plan,
)
from pacdp.federation.client import simulated_noise
from pacdp.federation.record_files import read_records
from pacdp.federation.wire import frame_digest
from pacdp.keys import create_key, load_signer
from pacdp.methods import build_method
from pacdp.privacy import RoundRequest, reply_table
from pacdp.site import Site
from pacdp.site.records import make_synthetic_records
from pacdp.site.refusal_counts import RefusalCounts
from pacdp.site.round_ledger import RoundLedger
from pacdp.site.timing import measure_interval
from pacdp.tasks import Classification
from tests.privacy.test_ledger import edit
from tests.site.trial import ROUNDS, heart_plan, make_trial, read_header, refusal_code


@pytest.fixture
def trial(tmp_path):
    return make_trial(tmp_path)


@pytest.fixture
def site(trial):
    with Site(trial.settings) as opened:
        yield opened


def spent(trial):
    return trial.ledger.filter.spent.total()


def test_each_round_is_answered_and_costs_what_was_planned(trial, site):
    for number in range(ROUNDS):
        frame = trial.broadcast(number)
        answer = site.answer(frame)
        header, reply = read_header(answer), trial.read(answer, frame).reply
        assert header["round"] == number
        assert header["client"] == site.number
        assert header["broadcast"] == frame_digest(frame)
        assert header["head"] in {entry.hash for entry in trial.ledger.entries}
        assert all(torch.isfinite(value).all() for value in reply.update.values())
        assert spent(trial) == number + 1
        assert trial.settings.head.read_text().strip() == trial.ledger.head
    assert trial.ledger.filter.realised.epsilon == pytest.approx(1.0, abs=1e-6)
    assert not site.refusals.by_code


def test_the_same_broadcast_gets_the_same_bytes_at_no_cost(trial, site):
    frame = trial.broadcast(0)
    first = site.answer(frame)
    assert refusal_code(first) is None
    entries = trial.ledger.entries
    assert site.answer(frame) == first
    site.close()
    with Site(trial.settings) as again:
        assert again.answer(frame) == first
    assert trial.ledger.entries == entries


def test_another_broadcast_for_the_round_is_refused(trial, site):
    first = site.answer(trial.broadcast(0))
    head = trial.ledger.head
    assert refusal_code(site.answer(trial.broadcast(0, factor=2.0))) == "answered"
    assert site.answer(trial.broadcast(0)) == first
    assert trial.ledger.head == head


class Killed(BaseException):
    """Ends an answer wherever it is, as the end of the process would."""


def kill(*_):
    raise Killed


def test_a_debit_without_reply_is_computed_for_that_broadcast_only(trial, site, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(site, "_encode", kill)
        with pytest.raises(Killed):
            site.answer(trial.broadcast(0))
    assert spent(trial) == 1
    assert refusal_code(site.answer(trial.broadcast(0, factor=2.0))) == "answered"
    assert refusal_code(site.answer(trial.broadcast(1))) is None
    assert refusal_code(site.answer(trial.broadcast(0))) is None
    assert spent(trial) == 2


def test_a_computation_that_fails_after_the_debit_is_not_repeated(trial, site, monkeypatch):
    def fail(*_):
        raise ValueError("not finite")

    with monkeypatch.context() as patch:
        patch.setattr(site, "_encode", fail)
        first = site.answer(trial.broadcast(0))
    assert refusal_code(first) == "lost"
    assert site.answer(trial.broadcast(0)) == first
    site.close()
    with Site(trial.settings) as again:
        assert again.answer(trial.broadcast(0)) == first
        assert refusal_code(again.answer(trial.broadcast(0, factor=2.0))) == "answered"
        assert refusal_code(again.answer(trial.broadcast(1))) is None
    assert spent(trial) == 2


def test_weights_at_the_edge_of_overflow_give_one_look(tmp_path):
    """Whether an update overflows depends on what was noised, so each round tells it once."""
    trial = make_trial(tmp_path, heart_plan(rounds=20, training={"optimiser": {"lr": 1e38}}))
    edge = {name: torch.zeros_like(value) for name, value in weights(trial).items()}
    next(iter(edge.values()))[0, 0] = torch.finfo(torch.float32).max
    with Site(trial.settings) as site:
        codes = []
        for number in range(20):
            frame = trial.broadcast(number, model=edge)
            answers = {site.answer(frame) for _ in range(5)}
            assert len(answers) == 1
            codes.append(refusal_code(answers.pop()))
    # The noise of one weight decides.
    assert set(codes) == {None, "lost"}
    assert spent(trial) == 20


def test_lost_replies_stay_lost(trial, site):
    site.answer(trial.broadcast(0))
    site.close()
    edit(trial.folder / "a.ledger", "DELETE FROM replies", triggers=["replies_are_never_deleted"])
    with Site(trial.settings) as again:
        for _ in range(2):
            assert refusal_code(again.answer(trial.broadcast(0))) == "lost"
        assert refusal_code(again.answer(trial.broadcast(0, factor=2.0))) == "answered"
    assert spent(trial) == 1


def test_a_reply_that_was_changed_is_never_sent(trial, site):
    site.answer(trial.broadcast(0))
    edit(
        trial.folder / "a.ledger",
        "UPDATE replies SET content = x'00'",
        triggers=["replies_are_never_updated"],
    )
    assert refusal_code(site.answer(trial.broadcast(0))) == "lost"


def test_a_restored_backup_counts_as_spent(trial, site):
    path = trial.folder / "a.ledger"
    shutil.copy(path, trial.folder / "backup")
    site.answer(trial.broadcast(0))
    newest = path.read_bytes()
    site.close()
    shutil.copy(trial.folder / "backup", path)
    with Site(trial.settings) as again:
        assert again.stale
        for number in range(ROUNDS):
            assert refusal_code(again.answer(trial.broadcast(number))) == "budget"
    # The head on separate storage stays, and the newest copy is accepted again.
    path.write_bytes(newest)
    with Site(trial.settings) as again:
        assert refusal_code(again.answer(trial.broadcast(0))) is None
    assert spent(trial) == 1


def test_a_backup_restored_under_a_running_site_counts_as_spent(trial, site):
    shutil.copy(trial.folder / "a.ledger", trial.folder / "backup")
    site.answer(trial.broadcast(0))
    shutil.copy(trial.folder / "backup", trial.folder / "a.ledger")
    for number in (1, 0, 2):
        assert refusal_code(site.answer(trial.broadcast(number))) == "budget"


def test_a_backup_between_debit_and_reply_gives_no_second_answer(trial, site, monkeypatch):
    path, original = trial.folder / "a.ledger", site._encode

    def copy_first(*arguments):
        shutil.copy(path, trial.folder / "backup")
        return original(*arguments)

    monkeypatch.setattr(site, "_encode", copy_first)
    assert refusal_code(site.answer(trial.broadcast(0))) is None
    site.close()
    shutil.copy(trial.folder / "backup", path)
    with Site(trial.settings) as again:
        assert refusal_code(again.answer(trial.broadcast(0))) == "budget"


def test_nothing_leaves_unless_its_head_is_known_elsewhere(trial, site):
    shutil.move(trial.folder / "other", trial.folder / "away")
    assert refusal_code(site.answer(trial.broadcast(0))) == "busy"
    shutil.move(trial.folder / "away", trial.folder / "other")
    assert refusal_code(site.answer(trial.broadcast(0))) is None
    assert spent(trial) == 1


def test_a_site_needs_the_head(trial):
    trial.settings.head.unlink()
    with pytest.raises(InputError, match="newest head of the ledger"):
        Site(trial.settings)


def test_two_sites_cannot_share_a_ledger(trial, site):
    with pytest.raises(InputError, match="another site process uses this ledger"):
        Site(trial.settings)
    site.close()
    Site(trial.settings).close()


def test_no_site_can_have_seeded_noise(trial, site):
    request = RoundRequest(trial.plan.run, 0, "0" * 64)
    ledger = RoundLedger(site.ledger, request)
    assert type(site._make_client(ledger).noise_source(0)) is SystemNoise
    with pytest.raises(InputError, match="its noise must be SystemNoise"):
        Client(
            *(site.number, trial.plan, site._records),
            ledger=ledger,
            noise=simulated_noise(0, site.number),
        )


# --- checked before it is paid ---------------------------------------------------------------


def weights(trial, **changes):
    return {**LocalModel(trial.plan).state(), **changes}


def refusals(trial, tmp_path):
    """Broadcasts that must be refused, with their codes."""
    create_key(tmp_path / "stranger.key")
    stranger = load_signer(tmp_path / "stranger.key")
    name, value = next(iter(weights(trial).items()))
    good = trial.broadcast(0)
    return [
        (b"", "malformed"),
        (b"PACDP" + bytes(200), "malformed"),
        (good[:-1], "signature"),
        (good[:-1] + bytes([good[-1] ^ 1]), "signature"),
        (good[:200] + bytes([good[200] ^ 1]) + good[201:], "signature"),
        (trial.broadcast(0, by=stranger), "signature"),
        (trial.broadcast(0, by=load_signer(trial.folder / "site.key")), "signature"),
        (trial.broadcast(0, run="another"), "run"),
        (trial.broadcast(0, plan="0" * 64), "plan"),
        (trial.broadcast(ROUNDS), "round"),
        (trial.broadcast(-1), "round"),
        (trial.broadcast(0, round=True), "malformed"),
        (trial.broadcast(0, round=0.0), "malformed"),
        (trial.broadcast(0, round="0"), "malformed"),
        (trial.broadcast(0, round=None), "malformed"),
        (trial.broadcast(0, length=0), "malformed"),
        (trial.broadcast(0, model={}), "weights"),
        (trial.broadcast(0, model=weights(trial, more=torch.zeros(1))), "weights"),
        (trial.broadcast(0, model=weights(trial, **{name: value[:1].clone()})), "weights"),
        (trial.broadcast(0, model=weights(trial, **{name: value.double()})), "weights"),
        (trial.broadcast(0, model=weights(trial, **{name: value.half()})), "weights"),
        (trial.broadcast(0, model=weights(trial, **{name: value.int()})), "weights"),
        (trial.broadcast(0, factor=float("nan")), "weights"),
        (trial.broadcast(0, factor=float("inf")), "weights"),
        (trial.broadcast(0, state={"bound": 1.0}), "state"),
        (trial.broadcast(0, state=[]), "malformed"),
        (trial.broadcast(0, more=1), "malformed"),
    ]


def test_everything_is_checked_before_it_is_paid(trial, site, tmp_path):
    head = trial.ledger.head
    for frame, code in refusals(trial, tmp_path):
        assert refusal_code(site.answer(frame)) == code
    assert trial.ledger.head == head
    assert refusal_code(site.answer(trial.broadcast(0))) is None


@pytest.mark.parametrize("bound", [None, "1", -1.0, 0, True, [], {}])
def test_a_methods_state_is_checked_before_it_is_paid(tmp_path, bound):
    trial = make_trial(tmp_path, heart_plan(method="aqc"))
    with Site(trial.settings) as site:
        assert refusal_code(site.answer(trial.broadcast(0, state={}))) == "state"
        assert refusal_code(site.answer(trial.broadcast(0, state={"bound": bound}))) == "state"
        assert not trial.ledger.filter.spent
        assert refusal_code(site.answer(trial.broadcast(0))) is None


def test_a_client_answers_only_rounds_in_which_it_takes_part(tmp_path):
    trial = make_trial(tmp_path, heart_plan(training={"clients_per_round": 2}))
    with Site(trial.settings) as site:
        for number in range(ROUNDS):
            asked = site.number in trial.plan.participants(number)
            code = refusal_code(site.answer(trial.broadcast(number)))
            assert code == (None if asked else "participant")
    assert spent(trial) == ROUNDS // 2


def test_a_budget_that_is_used_up_elsewhere_is_refused(tmp_path):
    trial = make_trial(tmp_path)
    trial.ledger.reserve(*trial.plan.planned_releases(0), run="another")
    with Site(trial.settings) as site:
        codes = [refusal_code(site.answer(trial.broadcast(n))) for n in range(ROUNDS)]
    assert codes == [None] * (ROUNDS - 1) + ["budget"]
    assert site.refusals.by_code == {"budget": 1}


@pytest.mark.parametrize("policy", ["late", "replan"])
def test_a_round_is_computed_again_with_the_noise_that_was_paid(tmp_path, monkeypatch, policy):
    trial = make_trial(tmp_path, heart_plan(spending={"policy": policy}))
    with Site(trial.settings) as site:
        site.answer(trial.broadcast(0))
        with monkeypatch.context() as patch:
            patch.setattr(site, "_encode", kill)
            with pytest.raises(Killed):
                site.answer(trial.broadcast(1))
        paid = trial.ledger.find_round(trial.plan.run, 1).releases
        site.answer(trial.broadcast(2))
        frame = trial.broadcast(1)
        scale = trial.read(site.answer(frame), frame).reply.noise_scale
    planned = trial.plan.planned_releases(site.number, scale=scale)
    assert planned == list(paid)
    assert spent(trial) == 3


def test_sampled_plans_are_frozen_once(tmp_path):
    data = load_dataset("heart")
    plan = heart_plan(method="rpdp-fl", rounds=2, epsilon=(0.5, 1.0, 1.0, 1.0))
    name = partition_records(data, "natural").clients[0]
    trial = make_trial(tmp_path, plan, client=name)
    with Site(trial.settings) as site:
        for number in range(2):
            assert refusal_code(site.answer(trial.broadcast(number))) is None
    kinds = [entry.kind for entry in trial.ledger.entries]
    assert kinds == ["open", "freeze", "release", "reply", "release", "reply"]


def test_a_locked_ledger_is_busy_and_nothing_is_lost(trial, site, monkeypatch):
    monkeypatch.setattr("pacdp.privacy.hash_chain.BUSY_SECONDS", 0.05)
    with closing(sqlite3.connect(trial.folder / "a.ledger")) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        assert refusal_code(site.answer(trial.broadcast(0))) == "busy"
    assert refusal_code(site.answer(trial.broadcast(0))) is None
    assert spent(trial) == 1


# --- intervals ------------------------------------------------------------------------------


def test_the_interval_is_measured_on_synthetic_records(tmp_path):
    trial = make_trial(tmp_path)
    lines = trial.toml.read_text().splitlines()
    trial.toml.write_text("\n".join(line for line in lines if not line.startswith("interval")))
    with Site(trial.settings) as site:
        assert site.interval >= 0.1
        assert not trial.ledger.filter.spent


def test_the_interval_is_never_shorter_than_measured(tmp_path, monkeypatch):
    trial = make_trial(tmp_path, interval=0.05)
    monkeypatch.setattr("pacdp.site.site.measure_interval", lambda *_, **__: 0.7)
    with Site(trial.settings) as site:
        assert site.interval == 0.7
    trial.toml.write_text(trial.toml.read_text().replace("0.05", "2.5"))
    with Site(trial.settings) as site:
        assert site.interval == 2.5


def test_synthetic_records_have_the_planned_units_and_levels(tmp_path):
    population = Population(
        sizes={"a": 9, "b": 4},
        shape=(3,),
        task=Classification(2),
        unit="patient",
        units={"a": 5, "b": 2},
        budgets={"a": {0.1: 3, 1.0: 2}, "b": {0.1: 2}},
    )
    plan = heart_plan(population=population, records={"levels": [0.1, 1.0]})
    local_model = LocalModel(plan)
    like = Records(features=np.zeros((1, 3), np.float32), labels=np.zeros(1, np.int64))
    for client in range(2):
        records = make_synthetic_records(plan, client, like)
        # Refuses records that are not as planned.
        Client(client, plan, records, local_model=local_model)
        files = {"ledger": tmp_path / "a.ledger", "head": tmp_path / "head"}
        assert measure_interval(local_model, client, like, **files) >= 0.1
    assert not list(tmp_path.iterdir())


def test_features_are_those_of_the_plan(tmp_path):
    data = load_dataset("heart")
    partition = partition_records(data, "natural")
    features = Features()
    plan = make_plan(
        Recipe(
            training=Training(rounds=2, local_epochs=1),
            privacy=Privacy(epsilon=1.0),
            representation=features,
        ),
        build_method("fixed"),
        Population.of(extract_features(data, features), partition),
        0,
    )
    trial = make_trial(tmp_path, plan)
    expected = partition.client_records(data)[trial.number]
    table = extract_features(data, features).train.features[partition.indices[trial.number]]
    assert np.array_equal(read_records(trial.settings.data, plan).features, table)
    assert len(expected) == len(table)
    with Site(trial.settings) as site:
        assert refusal_code(site.answer(trial.broadcast(0))) is None


# --- what a reply tells -----------------------------------------------------------------------


def test_the_head_in_a_reply_does_not_tell_when_it_was_paid(trial, site):
    """A server that knows all the rest of an entry could find its time by trying them all."""
    site.answer(trial.broadcast(0))
    head = read_header(site.answer(trial.broadcast(1)))["head"]
    entries = trial.ledger.entries
    (entry,) = [each for each in entries if each.hash == head]
    before = entries[entry.sequence - 2].hash
    debited = datetime.fromisoformat(entry.content["time"])

    def hashes(content):
        for milliseconds in range(-1000, 1000):
            time = (debited + timedelta(milliseconds=milliseconds)).isoformat(
                timespec="milliseconds"
            )
            body = json.dumps(content | {"time": time}, ensure_ascii=False)
            text = f"{entry.sequence}\n{before}\n{body}"
            yield hashlib.sha256(text.encode()).hexdigest()

    # With the salt, which never leaves, the search finds it; without it, or with another, not.
    assert head in hashes(entry.content)
    guessed = {name: value for name, value in entry.content.items() if name != "salt"}
    assert head not in hashes(guessed)
    assert head not in hashes(entry.content | {"salt": "0" * 32})
    salts = {each.content["salt"] for each in entries if "salt" in each.content}
    assert len(salts) == 2
    assert all(len(salt) == 32 for salt in salts)


def test_the_text_of_errors_is_not_logged(trial, site, monkeypatch, caplog):
    """It could hold a value of a record, which a plug-in's method may print."""

    def fail(*_, **__):
        raise ValueError("record 7: blood pressure 183")

    with monkeypatch.context() as patch:
        patch.setattr(type(site.plan.algorithm), "train", fail)
        assert refusal_code(site.answer(trial.broadcast(0))) == "lost"
    monkeypatch.setattr(site, "_make_client", fail)
    assert refusal_code(site.answer(trial.broadcast(1))) == "busy"
    assert "183" not in caplog.text
    assert "blood" not in caplog.text
    assert caplog.text.count("ValueError at ") == 2
    assert "test_answer.py" in caplog.text


def test_a_reply_that_cannot_be_stored_is_not_computed_again(trial, site, monkeypatch):
    computed, attempts = [], []
    encode, insert = site._encode, reply_table.insert_reply

    def spy(*arguments):
        computed.append(encode(*arguments))
        return computed[-1]

    def fail_often(connection, reply):
        attempts.append(reply.content)
        if len(attempts) < 5:
            raise sqlite3.OperationalError("database or disk is full")
        insert(connection, reply)

    monkeypatch.setattr(site, "_encode", spy)
    monkeypatch.setattr(reply_table, "insert_reply", fail_often)
    frames = [trial.broadcast(0), trial.broadcast(1)]
    # Asking for another round in between changes nothing.
    codes = [refusal_code(site.answer(frames[turn])) for turn in (0, 1, 0, 1, 0, 1)]
    assert codes == ["busy"] * 4 + [None] * 2
    assert len(computed) == 2
    assert set(attempts) == set(computed)


def test_a_full_disk_costs_at_most_the_debit(trial, site, monkeypatch):
    """Neither a debit nor a reply is half written, and the round can be asked for again."""
    connect = sqlite3.connect

    def full(*arguments, pages, **settings):
        connection = connect(*arguments, **settings)
        connection.execute(f"PRAGMA max_page_count = {pages}")
        return connection

    (pages,) = connect(trial.folder / "a.ledger").execute("PRAGMA page_count").fetchone()
    answers = []
    for more in range(8):
        with monkeypatch.context() as patch:
            patch.setattr(sqlite3, "connect", partial(full, pages=pages + more))
            answers.append(site.answer(trial.broadcast(0)))
    codes = [refusal_code(answer) for answer in answers]
    assert codes[0] == "busy"
    assert codes[-1] is None
    assert set(codes) == {"busy", None}
    assert len({answer for answer in answers if refusal_code(answer) is None}) == 1
    assert spent(trial) == 1


def test_damaged_counts_of_refusals_harm_nothing(trial):
    path = RefusalCounts.beside(trial.settings.ledger).path
    for content in (b"", b"[]", b'{"budget": 1e999}', b'{"budget": true}', b"[" * 10**5, b"\xff"):
        path.write_bytes(content)
        assert not RefusalCounts(path).by_code
