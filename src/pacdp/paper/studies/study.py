"""A study: one experiment of the paper as a file, with the numbers that the paper gives for it.

It names an experiment, the arms that are compared (methods with their settings), the budgets, and
what is drawn and tabulated. Profiles (``smoke``, ``desk``, ``full``) are its sizes: each takes the
experiment's profile of the same name, and may change the study's own settings.
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
# The headline first, and then in the order of the paper.
ORDER = (
    *("headline", "ablation", "weights"),
    *("curves", "mnist", "cifar10", "mnist-personalised", "cifar10-personalised"),
    *("heart", "heart-dnn", "heart-personalised", "heart-dnn-personalised"),
    *("cifar100", "cifar100-personalised", "cifar10-adam"),
    *("rounds-mnist", "rounds-cifar10", "overhead", "mnist-readings"),
)


class Arm(Settings):
    """One competitor: a method, its settings, and what else is different for it."""

    method: str = Field(description="A method's name.")
    settings: dict[str, Any] = Field({}, description="Its settings; C may be 'proxy'.")
    changes: dict[str, Any] = Field({}, description="Of the experiment, such as hot_start.")
    readings: tuple[Reading, ...] = Field(READINGS, description="Under which it is run.")


class PaperResults(Settings):
    """What the paper reports, by arm: shares of test records that are classified rightly."""

    where: str = Field("", description="The figure or table.")
    final: dict[str, Real] = Field({}, description="At the end.")
    rounds: dict[str, dict[int, Real]] = Field({}, description="After so many rounds.")
    target: dict[str, Count] = Field({}, description="Rounds to the target.")
    said: str = Field("", description="What it says in words.")


class StudyEntry(Settings):
    """A line of the headline: one setting of the paper, on one of the two tracks."""

    setting: str = Field(description="What it is called.")
    track: Track = Field("private-only", description="public or private-only.")
    experiment: str = Field(description="The shipped experiment.")
    changes: dict[str, Any] = Field({}, description="Of the experiment.")
    paper: Real = Field(0.0, description="The paper's accuracy.")
    reach: Real = Field(0.0, description="What is to be reached.")
    dealt: dict[str, Any] = Field(
        {}, description="How records are dealt out in the runs; the search does not know."
    )
    seeds: Count = Field(5, description="Runs, each with its own noise and partition.")
    pretrainings: Count = Field(1, description="Representations, each from its own seed.")
    split: bool = Field(False, description="Whether each seed also splits off other test records.")
    skew: Real | None = Field(
        None, gt=0, description="Also run with labels dealt out by Dirichlet(skew)."
    )
    search: Count = Field(5, description="Seeds of the search on public data.")
    sweeps: Count = Field(2, description="Its sweeps.")


class Study(Settings):
    """All settings of a study."""

    name: str = Field(description="What it is called.")
    title: str = Field(description="What it shows, in a line.")
    kind: Literal["comparison", "curves", "overhead", "headline", "weights", "ablation"] = Field(
        "comparison", description="Its kind."
    )
    experiment: str = Field("", description="The shipped experiment it trains.")
    experiments: tuple[str, ...] = Field((), description="Several, for curves and overhead.")
    entries: tuple[StudyEntry, ...] = Field((), description="The lines of a headline.")
    rules: tuple[str, ...] = Field((), description="Weights that are compared, the standard first.")
    changes: dict[str, Any] = Field({}, description="Changes of the experiment.")
    arms: tuple[str, ...] = Field(
        (), description="Methods, as fixed:clipping_bound=5, or variants."
    )
    variants: dict[str, Arm] = Field({}, description="Arms that need more words, by label.")
    epsilons: tuple[Real, ...] = Field((), description="Budgets of a sweep, certified.")
    rounds: tuple[Count, ...] = Field((), description="Rounds that the table shows.")
    target: Real | None = Field(
        None, gt=0, lt=1, description="The accuracy that rounds are counted to."
    )
    targets: tuple[Real, ...] = Field((), description="Others, that a small size can reach.")
    seeds: Count = Field(3, description="Runs of each row.")
    fit: bool = Field(True, description="Whether F is fitted, or the given one is taken.")
    note: str = Field("", description="What a reader must know.")
    paper: PaperResults = Field(PaperResults(), description="The paper's numbers.")
    profiles: dict[str, dict[str, Any]] = Field({}, description="Changes for smoke, desk, full.")

    @model_validator(mode="after")
    def _checked(self) -> Self:
        comparison = self.kind == "comparison"
        if comparison != bool(self.experiment) or comparison != bool(self.arms):
            raise ValueError(
                "a comparison has one experiment and arms, any other study experiments"
            )
        for name in self.arms:
            self.arm(name)
        if len(set(self.arms)) != len(self.arms):
            raise ValueError("arms: one comes twice")
        named = {*self.paper.final, *self.paper.rounds, *self.paper.target}
        unknown = sorted(named - set(self.arms))
        if unknown and comparison:
            raise ValueError(f"{unknown[0]}: is none of the arms")
        return self

    def arm(self, name: str) -> Arm:
        """An arm by what it is called in ``arms``."""
        if name in self.variants:
            return self.variants[name]
        method, *parts = name.split(":")
        if method not in METHODS:
            raise ValueError(f"arms: {name} is no method and no variant")
        pairs = [part.partition("=") for part in parts]
        return Arm(method=method, settings={key: float(value) for key, _, value in pairs})


# How arms are called in tables and figures.
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
    """What an arm is called for readers.

    >>> label_arm("fixed:clipping_bound=0.1"), label_arm("rpdp-fl"), label_arm("PAC-DP, hot start")
    ('fixed C = 0.1', 'rPDP-FL', 'PAC-DP, hot start')
    """
    method, _, settings = arm.partition(":")
    if method == "fixed" and settings:
        return f"fixed C = {settings.partition('=')[2]}"
    return _LABELS.get(arm, arm)


def list_studies() -> list[str]:
    """The names of the studies: the headline, and then in the order of the paper.

    >>> list_studies()[:5]
    ['headline', 'ablation', 'weights', 'curves', 'mnist']
    """
    return list(ORDER)


def read_study(name: str, *, profile: str) -> Study:
    """A study in one of its sizes.

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
    """A shipped experiment in one of its sizes, with changes."""
    read = read_experiment(name, profile=profile)
    content = read.model_dump(mode="json", exclude_unset=True, exclude={"profiles"})
    try:
        return Experiment.model_validate(merge_settings(content, changes))
    except ValidationError as error:
        raise InputError(f"{name}: {explain_validation_error(error, Experiment)}") from None
