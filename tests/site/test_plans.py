"""Plans at a site: accepted by hash, made again from their settings, with allowed plug-ins only."""

import hashlib
import json
import py_compile
import stat
import sys
from dataclasses import replace
from py_compile import PycInvalidationMode

import numpy as np
import pytest

from pacdp.data import load_dataset, partition_records
from pacdp.data.records import Records
from pacdp.errors import InputError, PacdpError
from pacdp.federation import Plan, Population, make_plan
from pacdp.federation.verification import reconstruct_population, verify_plan
from pacdp.federation.wire import plan_digest
from pacdp.plugins import hash_module, import_pinned
from pacdp.site import Site, SiteSettings
from pacdp.site.acceptance import propose_plan
from pacdp.site.settings import record_acceptance
from tests.site.trial import heart_plan, make_trial, refusal_code

LEVELS = {"levels": [0.1, 1.0]}


def with_budgets(**changes):
    """A plan for records with budgets of their own, and the first client's records."""
    data = load_dataset("heart")
    partition = partition_records(data, "natural")
    budgets = [np.where(np.arange(size) % 4, 0.1, 1.0) for size in partition.sizes]
    counts = {
        name: {0.1: int((own == 0.1).sum()), 1.0: int((own == 1.0).sum())}
        for name, own in zip(partition.clients, budgets, strict=True)
    }
    population = Population(
        sizes=partition.sizes_by_client, shape=data.shape, task=data.task, budgets=counts
    )
    plan = heart_plan(method="fixed", population=population, records=LEVELS, **changes)
    first = partition.client_records(data)[0]
    records = Records(features=first.features, labels=first.labels, budgets=budgets[0])
    return plan, partition.clients[0], records


PLANS = {
    "fixed": heart_plan,
    "uniform sampling": lambda: heart_plan(
        training={"clients_per_round": 2, "sampling": "uniform", "batch": 16}
    ),
    "adaptive": lambda: heart_plan(method="aqc", adjacency="replace-one"),
    "levels of clients": lambda: heart_plan(epsilon={"levels": [0.1, 1.0], "shares": [0.5, 0.5]}),
    "levels of records": lambda: with_budgets()[0],
    "drawn levels": lambda: heart_plan(records=LEVELS | {"shares": [0.7, 0.3]}),
    "per release": lambda: heart_plan(scope="per-release"),
    "sampled": lambda: heart_plan(method="rpdp-fl", rounds=2, epsilon=(0.5, 1.0, 1.0, 1.0)),
}


@pytest.mark.parametrize("name", PLANS)
def test_honest_plans_are_made_again(tmp_path, name):
    plan = PLANS[name]()
    plan.save(tmp_path / "plan.json")
    verify_plan(Plan.load(tmp_path / "plan.json"))


def test_units_are_part_of_the_population():
    data = load_dataset("heart")
    sizes = partition_records(data, "natural").sizes_by_client
    population = Population(
        sizes=sizes,
        shape=data.shape,
        task=data.task,
        unit="patient",
        units={name: size // 2 for name, size in sizes.items()},
    )
    plan = heart_plan(population=population)
    verify_plan(plan)
    assert reconstruct_population(plan) == population


def verify_changed(folder, plan, change):
    """Read and verify a plan that was changed after it was made, as a site does."""
    content = json.loads(plan.model_dump_json())
    change(content)
    (folder / "changed.json").write_text(json.dumps(content))
    verify_plan(Plan.load(folder / "changed.json"))


def change_client(**changes):
    return lambda content: content["clients"][0].update(changes)


def scale_noise(factor):
    def change(content):
        for client in content["clients"]:
            for charge in client["charges"]:
                charge["noise_multiplier"] *= factor

    return change


def change_charge(**changes):
    return lambda content: content["clients"][0]["charges"][0].update(changes)


@pytest.mark.parametrize(
    "change",
    [
        scale_noise(0.99),
        scale_noise(1 - 1e-6),
        scale_noise(2.0),
        change_charge(sensitivity=0.5),
        change_charge(each=2),
        change_charge(sampling_rate=0.5),
        change_charge(levels=[[0.5, 1.0]]),
        change_client(divisor=1.0),
        change_client(epsilon=2.0),
        change_client(budget=2.0),
        change_client(participations=60),
        change_client(steps=7),
        change_client(batches=2),
        change_client(units=100),
        lambda content: content["privacy"].update(delta=1e-2),
        lambda content: content["privacy"].update(adjacency="replace-one"),
        lambda content: content["training"].update(rounds=60),
    ],
)
def test_forged_plans_are_refused(tmp_path, change):
    plan = heart_plan()
    with pytest.raises(PacdpError):
        verify_changed(tmp_path, plan, change)


def test_forged_levels_are_refused(tmp_path):
    plan, *_ = with_budgets()
    verify_plan(plan)
    for change in (
        change_charge(levels=[[1.0, 1.0], [1.0, 1.0]]),
        lambda content: content["clients"][0]["levels"][0].update(budget=1.0),
        lambda content: content["clients"][0].update(levels=[]),
        lambda content: content["privacy"]["records"].update(levels=[0.5, 1.0]),
    ):
        with pytest.raises(PacdpError):
            verify_changed(tmp_path, plan, change)


def test_rounding_of_another_machine_is_accepted(tmp_path):
    verify_changed(tmp_path, heart_plan(), scale_noise(1 + 1e-13))


def test_a_site_answers_for_records_with_budgets(tmp_path):
    plan, name, records = with_budgets()
    trial = make_trial(tmp_path, plan, client=name, records=records)
    with Site(trial.settings) as site:
        for number in range(plan.rounds):
            assert refusal_code(site.answer(trial.broadcast(number))) is None
    spent = [state.realised.epsilon for state in trial.ledger.filter.by_level]
    assert spent == pytest.approx([0.1, 1.0], rel=1e-6)


def test_records_with_other_budgets_are_refused(tmp_path):
    plan, name, records = with_budgets()
    budgets = np.roll(records.budgets, 1)
    budgets[0] = 1.0
    other = Records(features=records.features, labels=records.labels, budgets=budgets)
    trial = make_trial(tmp_path, plan, client=name, records=other)
    with pytest.raises(InputError, match="not as planned"):
        Site(trial.settings)


def test_only_the_accepted_plan_is_used(tmp_path):
    trial = make_trial(tmp_path, accepted=False)
    with pytest.raises(InputError, match="has not been accepted yet"):
        Site(trial.settings)
    record_acceptance(trial.toml, plan_digest(trial.plan))
    Site(trial.settings).close()
    heart_plan(rounds=3).save(trial.settings.plan)
    with pytest.raises(InputError, match="changed since it was accepted"):
        Site(trial.settings)


def test_methods_without_a_guarantee_are_refused(tmp_path):
    trial = make_trial(tmp_path)
    heart_plan(method="fedavg").save(trial.settings.plan)
    with pytest.raises(InputError, match="has no privacy guarantee"):
        Site(trial.settings)


def test_records_of_another_number_are_refused(tmp_path):
    data = load_dataset("heart")
    records = partition_records(data, "natural").client_records(data)[0]
    trial = make_trial(tmp_path, records=records.take(np.arange(50)))
    with pytest.raises(InputError, match="has 50 records, but is planned"):
        Site(trial.settings)


def test_a_client_that_is_not_planned_is_refused(tmp_path):
    trial = make_trial(tmp_path)
    trial.toml.write_text(trial.toml.read_text().replace("'cleveland'", "'nowhere'"))
    with pytest.raises(InputError, match="is not in the plan"):
        Site(trial.settings)


# --- plug-ins -------------------------------------------------------------------------------

PLUGIN = """
from pathlib import Path
from torch import nn
Path({mark!r}).touch()
def make(shape, outputs):
    return nn.Sequential(nn.Linear(shape[0], outputs))
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    path = tmp_path / "site_test_plugin.py"
    path.write_text(PLUGIN.format(mark=str(tmp_path / "imported")))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield path
    sys.modules.pop("site_test_plugin", None)


def plugin_trial(folder, modules):
    trial = make_trial(folder)
    content = json.loads(trial.settings.plan.read_text())
    content["model"]["name"] = "site_test_plugin:make"
    trial.settings.plan.write_text(json.dumps(content))
    accepted = plan_digest(Plan.model_validate_json(json.dumps(content)), modules)
    record_acceptance(trial.toml, accepted)
    with trial.toml.open("a") as stream:
        stream.write("[modules]\n" + "".join(f"{n} = '{h}'\n" for n, h in modules.items()))
    return trial


def test_allowed_plug_ins_are_used(tmp_path, plugin):
    digest = hashlib.sha256(plugin.read_bytes()).hexdigest()
    trial = plugin_trial(tmp_path, {"site_test_plugin": digest})
    Site(trial.settings).close()
    assert (tmp_path / "imported").exists()


@pytest.mark.parametrize("modules", [{}, {"site_test_plugin": "0" * 64}])
def test_other_plug_ins_are_refused_and_not_imported(tmp_path, plugin, modules):
    trial = plugin_trial(tmp_path, modules)
    with pytest.raises(InputError, match=r"does not allow|another SHA-256"):
        Site(trial.settings)
    assert not (tmp_path / "imported").exists()


def test_code_that_has_changed_is_another_agreement(tmp_path, plugin):
    digest = hashlib.sha256(plugin.read_bytes()).hexdigest()
    trial = plugin_trial(tmp_path, {"site_test_plugin": digest})
    plugin.write_text(plugin.read_text() + "# harmless\n")
    changed = hashlib.sha256(plugin.read_bytes()).hexdigest()
    trial.toml.write_text(trial.toml.read_text().replace(digest, changed))
    # The owner allows the new file, but has accepted the plan with the old one.
    with pytest.raises(InputError, match="its plug-ins or the version of pacdp changed"):
        Site(trial.settings)


def test_no_code_runs_before_all_files_were_compared(tmp_path, plugin):
    package = tmp_path / "site_test_package"
    package.mkdir()
    (package / "__init__.py").write_text("import site_test_plugin, site_test_package.inner\n")
    (package / "inner.py").write_text("")
    pinned = {name: hash_module(name) for name in ("site_test_package", "site_test_package.inner")}
    for wrong in ({"site_test_plugin": "0" * 64}, {"site_test_package.inner": "0" * 64}):
        with pytest.raises(InputError, match="another SHA-256"):
            import_pinned(pinned | wrong)
        assert "site_test_package" not in sys.modules
    assert not (tmp_path / "imported").exists()
    with pytest.raises(InputError, match="its package site_test_package must also be listed"):
        import_pinned({"site_test_package.inner": pinned["site_test_package.inner"]})


def test_a_compiled_file_beside_a_pinned_one_does_not_run(tmp_path, monkeypatch):
    """Python would run it: a compiled file may say of itself that it need not fit its source."""
    monkeypatch.syspath_prepend(tmp_path)
    source = tmp_path / "site_test_compiled.py"
    source.write_text("origin = 'source'\n")
    digest = hash_module("site_test_compiled")
    source.write_text("origin = 'compiled'\n")
    py_compile.compile(str(source), invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)
    source.write_text("origin = 'source'\n")
    try:
        import_pinned({"site_test_compiled": digest})
        assert sys.modules["site_test_compiled"].origin == "source"
    finally:
        sys.modules.pop("site_test_compiled", None)


@pytest.mark.parametrize(
    "change",
    [
        {"method": "subprocess:Popen"},
        {"model": {"name": "subprocess:call", "settings": {}, "seed": None}},
        {"representation": {"name": "gradients", "public": "subprocess:call"}},
    ],
)
def test_modules_that_happen_to_be_imported_are_no_plug_ins(tmp_path, change):
    trial = make_trial(tmp_path)
    content = json.loads(trial.settings.plan.read_text()) | change
    trial.settings.plan.write_text(json.dumps(content))
    with pytest.raises(InputError, match="does not allow"):
        Site(trial.settings)


def test_no_name_in_a_plan_can_look_like_another_topic(tmp_path):
    plan = heart_plan()
    false = "heart\x1b[8m\r\nprivacy  ε = 0.001\u202e"
    population = replace(reconstruct_population(plan), data=false)
    made = make_plan(plan.recipe, plan.algorithm, population, 0)
    make_trial(tmp_path, made, accepted=False)
    rows = propose_plan(tmp_path / "plan.json", tmp_path / "site.toml").describe()
    assert all(text.isprintable() for text in rows.values())
    assert r"heart\x1b[8m\r\nprivacy  ε = 0.001\u202e" in rows["model"]


def test_the_agreement_counts_all_rounds_that_replanning_may_answer(tmp_path):
    training = {"clients_per_round": 2, "sampling": "uniform", "cap": 0.5}
    plan = heart_plan(rounds=20, training=training, spending={"policy": "replan"})
    make_trial(tmp_path, plan, accepted=False)
    rows = propose_plan(tmp_path / "plan.json", tmp_path / "site.toml").describe()
    assert plan.clients[0].participations < 20
    assert "at most 20 of them" in rows["rounds"]
    assert "at most 20 noisy results" in rows["releases"]


def test_a_plan_is_read_once(tmp_path, monkeypatch):
    """A file that somebody else can change must not be checked first and used afterwards."""
    trial = make_trial(tmp_path, accepted=False)
    sent = tmp_path / "sent.json"
    other = json.loads(trial.plan.model_dump_json()) | {"method": "pacdp.methods.fixed:Fixed"}
    monkeypatch.setattr(
        "pacdp.site.plans.import_pinned", lambda modules: sent.write_text(json.dumps(other))
    )
    trial.plan.save(sent)
    assert propose_plan(sent, trial.toml).plan == trial.plan
    sent.write_text("null")
    with pytest.raises(PacdpError, match=r"no plan|arithmetic"):
        propose_plan(sent, trial.toml)


# --- site.toml ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("seed = 1", "is no setting"),
        ("noise = 'seeded'", "is no setting"),
        ("interval = 0", "interval"),
        ("interval = '1'", "interval"),
        ("peers = ['root']", "peers"),
        ("coordinator = 'abc'", "coordinator"),
        ("nonsense", "is not a TOML file"),
    ],
)
def test_settings_are_checked(tmp_path, line, message):
    trial = make_trial(tmp_path)
    key = line.partition(" = ")[0]
    kept = [each for each in trial.toml.read_text().splitlines() if not each.startswith(key)]
    trial.toml.write_text("\n".join([*kept, line]))
    with pytest.raises(InputError, match=message) as refusal:
        SiteSettings.load_toml(trial.toml)
    assert "\n" not in str(refusal.value)


def test_acceptance_keeps_the_rest_of_the_file(tmp_path):
    path = tmp_path / "site.toml"
    for before in (
        "# ours\nclient = 'a'\n[modules]\naccepted = 'x'\n",
        f"accepted = '{'1' * 64}' # old\nclient = 'a'\n",
    ):
        path.write_text(before)
        record_acceptance(path, "2" * 64)
        after = path.read_text()
        assert f'accepted = "{"2" * 64}"' in after
        assert "client = 'a'" in after
        record_acceptance(path, "2" * 64)
        assert path.read_text() == after


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
@pytest.mark.parametrize("name", ["key", "ledger", "data"])
def test_files_that_others_can_use_are_refused(tmp_path, name, mode):
    trial = make_trial(tmp_path)
    getattr(trial.settings, name).chmod(mode)
    with pytest.raises(InputError, match=r"is accessible to other users .* must have mode 600"):
        Site(trial.settings)


def test_files_are_created_for_their_owner_alone(tmp_path):
    trial = make_trial(tmp_path, accepted=False)
    for path in (trial.settings.head, trial.settings.plan, trial.toml):
        path.chmod(0o666)
    trial.settings.head.unlink()
    propose_plan(trial.settings.plan, trial.toml).accept()
    with Site(trial.settings) as site:
        site.answer(trial.broadcast(0))
        site.answer(b"")
        site.refusals.save()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.name for path in files if stat.S_IMODE(path.stat().st_mode) != 0o600} <= {
        # Of the test alone.
        "coordinator.key"
    }


def test_a_missing_file_is_named(tmp_path):
    trial = make_trial(tmp_path)
    trial.settings.data.unlink()
    with pytest.raises(InputError, match=r"records\.npz: cannot be read"):
        Site(trial.settings)
