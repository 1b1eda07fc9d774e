"""Keys that are replaced in the middle of a run, on both sides."""

from pacdp.federation.wire import replace_signature
from pacdp.keys import create_key, load_signer, read_public_key
from pacdp.site import Site
from tests.coordinator.test_coordinator import check_run
from tests.coordinator.trial import coordinating, make_federation, open_sites, relay
from tests.site.trial import ROUNDS, make_trial, refusal_code


def replace_text(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_site_repeats_its_answers_after_the_coordinators_key_was_replaced(tmp_path):
    trial = make_trial(tmp_path)
    old = trial.settings.coordinator[0]
    new = create_key(tmp_path / "new.key")
    sign = load_signer(tmp_path / "new.key")
    frame = trial.broadcast(0)
    again = replace_signature(frame, sign=sign)
    with Site(trial.settings) as site:
        answer = site.answer(frame)
        assert refusal_code(site.answer(again)) == "signature"
    # Both keys, for the time of the change.
    replace_text(trial.toml, f"'{old}'", f"['{old}', '{new}']")
    with Site(trial.settings) as site:
        assert site.answer(frame) == site.answer(again) == answer
    # The new one alone.
    replace_text(trial.toml, f"['{old}', '{new}']", f"'{new}'")
    with Site(trial.settings) as site:
        assert refusal_code(site.answer(frame)) == "signature"
        assert refusal_code(site.answer(trial.broadcast(1))) == "signature"
        assert site.answer(again) == answer
        assert refusal_code(site.answer(trial.broadcast(1, by=sign))) is None
    assert len(trial.ledger.rounds) == trial.ledger.filter.spent.total() == 2


def test_a_site_repeats_its_answers_after_its_own_key_was_replaced(tmp_path):
    trial = make_trial(tmp_path)
    frame = trial.broadcast(0)
    with Site(trial.settings) as site:
        answer = site.answer(frame)
    create_key(tmp_path / "new.key")
    replace_text(trial.toml, "'site.key'", "'new.key'")
    with Site(trial.settings) as site:
        # Signed by the old key, as it was sent the first time.
        assert site.answer(frame) == answer


def test_both_sides_replace_their_keys_in_the_middle_of_a_round(tmp_path):
    federation = make_federation(tmp_path)
    name, trial = federation.names[0], federation.trials[0]

    def stop(state):
        # One site has answered the third round, the others have not.
        return state.round == 2 and len(state.sites) == 3

    with open_sites(federation) as sites, coordinating(federation):
        relay(federation, lambda who, frame: sites[who].answer(frame), until=stop)
    # The coordinator's key: sites know only the new one.
    old, new = federation.trials[0].settings.coordinator[0], create_key(tmp_path / "new.key")
    for each in federation.trials:
        replace_text(each.toml, old, new)
    replace_text(federation.toml, "'coordinator.key'", "'new.key'")
    # The key of a site: the coordinator knows only the new one, although its log has older replies.
    before = read_public_key(trial.settings.key)
    after = create_key(trial.folder / "new.key")
    replace_text(trial.toml, "'site.key'", "'new.key'")
    replace_text(federation.toml, before, after)
    with open_sites(federation) as sites, coordinating(federation) as process:
        state = relay(federation, lambda who, frame: sites[who].answer(frame))
        assert state.state == "ended"
        assert process.wait(30) == 0
    check_run(federation)
    assert federation.status["sites"][name] == {"replies": ROUNDS, "refusals": {}}
