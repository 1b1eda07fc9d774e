"""Experiment files: where their paths lead."""

import pytest

from pacdp.experiments import prepare_run, read_experiment

TEXT = """
name = "mine"
method = "fixed"
[data]
name = "hospitals"
[training]
rounds = 2
local_steps = 1
[offline]
proxy = "public"
"""


@pytest.fixture
def file(tmp_path):
    home = tmp_path / "home"
    for folder, shift in (("hospitals", 0), ("public", 100)):
        (home / folder).mkdir(parents=True)
        for name in ("north", "south"):
            rows = "".join(f"{n + shift},{n % 7},{n % 2}\n" for n in range(20))
            (home / folder / f"{name}.csv").write_text(f"age,visits,label\n{rows}")
    (home / "mine.toml").write_text(TEXT)
    return home / "mine.toml"


def test_folders_beside_the_file_are_found_from_anywhere(file, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    experiment = read_experiment(str(file))
    assert experiment.data.name == str(file.parent / "hospitals")
    assert experiment.offline.proxy == str(file.parent / "public")
    assert [task.name for task in prepare_run(experiment).plan.clients] == ["north", "south"]


def test_a_curve_that_is_yet_to_be_made_is_in_nobodys_way(file):
    file.write_text(TEXT + '[methods.pac-dp]\ncurve = "curve.json"\n')
    with pytest.raises(OSError, match=r"curve\.json"):
        read_experiment(str(file))
    made = read_experiment(str(file), curves=False)
    assert made.missing_settings("pac-dp") == ["curve"]


def test_a_data_set_by_name_is_no_folder(file, monkeypatch):
    (file.parent / "heart").mkdir()
    experiment = read_experiment(str(file), changes=["data.name=heart"])
    assert experiment.data.name == "heart"


def test_a_hot_start_may_come_from_a_folder_of_ones_own(file, monkeypatch):
    monkeypatch.chdir(file.parent)
    changes = ["hot_start.proxy=public", "hot_start.epochs=1"]
    made = prepare_run(read_experiment("mine.toml", changes=changes))
    assert made.before is not None
    assert "accuracy" in made.before
