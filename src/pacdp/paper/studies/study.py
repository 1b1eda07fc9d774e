"""Studies: experiments of the paper as files, with the numbers that the paper reports.

A study names an experiment, the arms that are compared (methods with their settings), the budgets,
and the contents of tables and figures. Its profiles (``smoke``, ``desk``, ``full``) use the
experiment's profile of the same name, and may change the settings of the study.
"""

import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from pacdp.config import Count, Real, Settings, explain_validation_error
from pacdp.errors import InputError
from pacdp.experiments import Experiment, read_experiment
from pacdp.experiments.experiment import merge_settings
from pacdp.features import Track
from pacdp.methods import METHODS
from pacdp.validation import suggest

PROFILES = ("smoke", "desk", "full")
Reading = Literal["as-published", "certified"]
READINGS: tuple[Reading, ...] = ("as-published", "certified")
# The headline first, then the order of the paper.
ORDER = (
    *("headline", "ablation", "weights"),
    *("curves", "mnist", "cifar10", "mnist-personalised", "cifar10-personalised"),
    *("heart", "heart-dnn", "heart-personalised", "heart-dnn-personalised"),
    *("cifar100", "cifar100-personalised", "cifar10-adam"),
    *("rounds-mnist", "rounds-cifar10", "overhead", "mnist-readings"),
)


class Arm(Settings):
    """A method with its settings and with changes of the experiment."""

    method: str
    # The clipping_bound may be 'proxy': the best one on the proxy.
    settings: Mapping[str, Any] = {}
    changes: Mapping[str, Any] = {}
    readings: tuple[Reading, ...] = READINGS


class PaperResults(Settings):
    """The accuracies that the paper reports, by arm."""

    # Figure or table of the paper.
    where: str = ""
    # Final accuracy, accuracy by round, and rounds until the target.
    final: Mapping[str, Real] = {}
    rounds: Mapping[str, Mapping[int, Real]] = {}
    target: Mapping[str, Count] = {}
    # The claim in words.
    said: str = ""


class StudyEntry(Settings):
    """One setting of the paper on one of the two tracks: a line of the headline."""

    setting: str
    track: Track = "private-only"
    experiment: str
    changes: Mapping[str, Any] = {}
    # Accuracy that the paper reports, and target accuracy.
    paper: Real = 0.0
    reach: Real = 0.0
    # Changes of the data in the runs, which the search does not know.
    dealt: Mapping[str, Any] = {}
    # Number of runs, each with its own noise and partition.
    seeds: Count = 5
    # Number of pretrained features, each with its own seed.
    pretrainings: Count = 1
    # Whether each seed has its own test split.
    split: bool = False
    # Also run with labels distributed by Dirichlet(skew).
    skew: Real | None = Field(None, gt=0)
    # Number of seeds and maximum number of sweeps of the search on public data.
    search: Count = 5
    sweeps: Count = 2


class Study(Settings):
    """All settings of a study."""

    name: str
    # One line that describes it.
    title: str
    kind: Literal["comparison", "curves", "overhead", "headline", "weights", "ablation"] = (
        "comparison"
    )
    # Experiment that a comparison trains, experiments of curves and overhead, and settings of the
    # other kinds.
    experiment: str = ""
    experiments: tuple[str, ...] = ()
    entries: tuple[StudyEntry, ...] = ()
    # Rules for weights that are compared, the reference first.
    rules: tuple[str, ...] = ()
    # Changes of the experiment.
    changes: Mapping[str, Any] = {}
    # Methods, as fixed:clipping_bound=5, or labels of variants.
    arms: tuple[str, ...] = ()
    # Arms with changes of the experiment, by label.
    variants: Mapping[str, Arm] = {}
    # Budgets of a certified sweep.
    epsilons: tuple[Real, ...] = ()
    # Rounds shown in the table.
    rounds: tuple[Count, ...] = ()
    # Accuracy for counting rounds, and further ones that a small profile can reach.
    target: Real | None = Field(None, gt=0, lt=1)
    targets: tuple[Real, ...] = ()
    # Number of runs of each arm.
    seeds: Count = 3
    # Whether F is fitted instead of given.
    fit: bool = True
    # Note for the reader.
    note: str = ""
    paper: PaperResults = PaperResults()
    # Changes for smoke, desk and full.
    profiles: Mapping[str, Mapping[str, Any]] = {}

    @model_validator(mode="after")
    def _check(self) -> Self:
        comparison = self.kind == "comparison"
        if comparison != bool(self.experiment) or comparison != bool(self.arms):
            raise ValueError(
                "a comparison needs an experiment and arms, and other studies have neither"
            )
        for name in self.arms:
            self.arm(name)
        if len(set(self.arms)) != len(self.arms):
            raise ValueError("arms: one is listed twice")
        named = {*self.paper.final, *self.paper.rounds, *self.paper.target}
        unknown = sorted(named - set(self.arms))
        if unknown and comparison:
            raise ValueError(f"{unknown[0]}: is none of the arms")
        return self

    def arm(self, name: str) -> Arm:
        """Return an arm by its name in ``arms``."""
        if name in self.variants:
            return self.variants[name]
        method, *parts = name.split(":")
        if method not in METHODS:
            raise ValueError(f"arms: {name} is no method and no variant")
        pairs = [part.partition("=") for part in parts]
        return Arm(method=method, settings={key: float(value) for key, _, value in pairs})


# Names of arms in tables and figures.
_LABELS = {
    "pac-dp": "PAC-DP",
    "dp-fedavg": "DP-FedAvg",
    "nbafl": "NbAFL",
    "rpdp-fl": "rPDP-FL",
    "cgm-median": "CGM-median",
    "aqc": "AQC",
    "fedavg": "FedAvg, no privacy",
}


def label_arm(arm: str) -> str:
    """Return the name of an arm in tables and figures.

    >>> label_arm("fixed:clipping_bound=0.1"), label_arm("rpdp-fl"), label_arm("PAC-DP, hot start")
    ('fixed C = 0.1', 'rPDP-FL', 'PAC-DP, hot start')
    """
    method, _, settings = arm.partition(":")
    if method == "fixed" and settings:
        return f"fixed C = {settings.partition('=')[2]}"
    return _LABELS.get(arm, arm)


def list_studies() -> list[str]:
    """List the studies: the headline first, then the order of the paper.

    >>> list_studies()[:5]
    ['headline', 'ablation', 'weights', 'curves', 'mnist']
    """
    return list(ORDER)


def read_study(name: str, *, profile: str) -> Study:
    """Read a study in one of its profiles.

    >>> read_study("heart", profile="smoke").seeds
    1
    """
    if profile not in PROFILES:
        raise InputError(f"--profile {profile}: must be {', '.join(PROFILES)}")
    if name not in ORDER:
        raise InputError(
            f"study = {name!r}: unknown; {suggest(name, ORDER)}there are all, {', '.join(ORDER)}"
        )
    file = resources.files("pacdp.paper.studies").joinpath("files", f"{name}.toml")
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    sized = merge_settings(content, content.get("profiles", {}).get(profile, {}))
    try:
        return Study.model_validate(sized)
    except ValidationError as error:
        raise InputError(f"{Path(name)}: {explain_validation_error(error, Study)}") from None


def load_study_experiment(name: str, changes: Mapping[str, Any], *, profile: str) -> Experiment:
    """Read an experiment in one of its profiles, with changes."""
    content = read_experiment(name, profile=profile).model_dump(
        mode="json", exclude_unset=True, exclude={"profiles"}
    )
    try:
        return Experiment.model_validate(merge_settings(content, changes))
    except ValidationError as error:
        raise InputError(f"{name}: {explain_validation_error(error, Experiment)}") from None


def update_sections(experiment: Experiment, updates: Mapping[str, Mapping[str, Any]]) -> Experiment:
    """Replace single values in the sections of an experiment, such as privacy or data."""
    sections = {
        name: getattr(experiment, name).model_copy(update=values)
        for name, values in updates.items()
    }
    return experiment.model_copy(update=sections)
