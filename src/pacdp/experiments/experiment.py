"""Experiments: TOML files with all settings of a training run except its seed.

Shipped experiments are loaded by name, others by path. Profiles (``smoke``, ``desk``, ``full``) are
smaller or larger versions of the same experiment, and ``--set training.rounds=5`` changes a single
setting.
"""

import copy
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from pacdp.config import Count, Real, Settings, explain_validation_error
from pacdp.data import CATALOGUE
from pacdp.errors import InputError
from pacdp.federation import Recipe
from pacdp.methods import Method, PacDp, build_method, find_method, import_method
from pacdp.models import import_model
from pacdp.offline import Offline
from pacdp.validation import suggest

# Either {"training.rounds": 5} or ["training.rounds=5"].
Changes = Mapping[str, Any] | Sequence[str]

# Stands for a curve that is fitted later, so that the other settings of a method can be checked.
_PLACEHOLDER_CURVE = {"family": "power", "coefficients": (1.0, 0.0)}


class Data(Settings):
    """The data set, and how its records are divided among clients."""

    name: str = Field(description="Name of a data set, or a folder with a file for each client.")
    options: dict[str, Any] = Field(
        {}, description="Options of the data set, such as split or unit."
    )
    partition: str | None = Field(
        None,
        description="How records are divided among clients: natural, iid, dirichlet, shards, "
        "quantity or near-global.",
    )
    clients: Count | None = Field(None, description="Number of clients; not for natural.")
    settings: dict[str, Real] = Field({}, description="Settings of the partition, such as alpha.")
    budgets: str | None = Field(
        None,
        description="module:name of a function of records that returns the ε of each, "
        "from public attributes; privacy.records then lists the levels.",
        exclude_if=lambda budgets: budgets is None,
    )


class Experiment(Recipe):
    """All settings of an experiment."""

    name: str = Field(description="Name of the experiment.")
    description: str = Field("", description="One-line description.")
    method: str = Field(PacDp.name, description="Method to run by default.")
    data: Data
    offline: Offline = Field(Offline(), description="The grid on which F is fitted.")
    evaluate_every: Count = Field(
        1, description="Evaluate on the test records every this many rounds."
    )
    failure_rate: Real = Field(
        0.0, ge=0, lt=1, description="Probability that a client fails in a round."
    )
    tuning: dict[str, Any] | None = Field(
        None, description="Written by pacdp tune: what it chose, why, and the expected score."
    )
    methods: dict[str, dict[str, Any]] = Field(
        {}, description="Settings of each method, by its name."
    )
    profiles: dict[str, dict[str, Any]] = Field(
        {}, description="Changed settings of the profiles smoke, desk and full."
    )

    def build_method(
        self, name: str | None = None, changes: Mapping[str, Any] | None = None
    ) -> Method:
        """Build a method with the settings it has here; by default the experiment's own method."""
        chosen = name or self.method
        given = self.methods.get(chosen, {}) | dict(changes or {})
        missing = self.missing_settings(chosen, given)
        if missing:
            raise InputError(
                f"methods.{chosen}.{missing[0]}: is missing; pacdp run fits one by itself, pacdp "
                "fit makes a file of it, or give it there such as "
                '{ family = "power", coefficients = [1.0, 0.4] }'
            )
        return build_method(chosen, given)

    def missing_settings(self, name: str, given: Mapping[str, Any] | None = None) -> list[str]:
        """List the required settings of a method that the experiment does not have."""
        known = self.methods.get(name, {}) if given is None else given
        return [key for key in find_method(name).required_settings if key not in known]


def list_experiments() -> list[str]:
    """List the experiments that come with the package.

    >>> list_experiments()
    ['cifar10', 'cifar100', 'heart', 'heart-dnn', 'heart-personalised', 'heart-records', 'mnist',
     'mnist-records']
    """
    files = resources.files("pacdp.experiments").joinpath("files").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def read_experiment(
    name: str, *, profile: str | None = None, changes: Changes = (), curves: bool = True
) -> Experiment:
    """Read an experiment by name or path, in one of its profiles, with some settings changed.

    Without ``curves`` the files of curves are not read: they may not exist yet.

    >>> read_experiment("heart", changes=["training.rounds=2"]).training.rounds
    2
    """
    text = _read_text(name)
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{name}: is no TOML ({error})") from None
    if not curves:
        for settings in _settings_with_curve_file(content):
            del settings["curve"]
    experiment = _validate(content, name, name)
    # Every profile is validated, so that a mistake in one is found before it is used.
    profiles = {
        key: _validate(merge_settings(content, settings), name, f"{name}, profile {key}")
        for key, settings in experiment.profiles.items()
    }
    if profile is not None and profile not in profiles:
        raise InputError(f"profile = {profile!r}: {name} has {', '.join(profiles) or 'none'}")
    if not changes:
        return experiment if profile is None else profiles[profile]
    if profile is not None:
        content = merge_settings(content, experiment.profiles[profile])
    for change in nest_changes(changes).values():
        content = merge_settings(content, change)
    return _validate(content, name, name)


def _read_text(name: str) -> str:
    path = Path(name)
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise InputError(f"{name}: is no text in UTF-8") from None
    if name in list_experiments():
        file = resources.files("pacdp.experiments").joinpath("files", f"{name}.toml")
        return file.read_text(encoding="utf-8")
    raise InputError(
        f"experiment = {name!r}: unknown; {suggest(name, list_experiments())}there are "
        f"{', '.join(list_experiments())}, or a TOML file"
    )


def _validate(content: Mapping[str, Any], name: str, where: str) -> Experiment:
    """Validate the settings of an experiment, including those of its methods."""
    settings = copy.deepcopy(dict(content))
    if Path(name).is_file():
        _resolve_paths(settings, Path(name).parent)
    try:
        experiment = Experiment.model_validate(settings)
    except ValidationError as error:
        raise InputError(f"{where}: {explain_validation_error(error, Experiment)}") from None
    for method in {experiment.method, *experiment.methods}:
        import_method(method)
    import_model(experiment.model.name)
    for method in experiment.methods:
        missing = experiment.missing_settings(method)
        experiment.build_method(method, dict.fromkeys(missing, _PLACEHOLDER_CURVE))
    return experiment


def _resolve_paths(content: dict[str, Any], folder: Path) -> None:
    """Make the paths of curves and of folders of data relative to the experiment's file."""
    for table, key in (("data", "name"), ("offline", "proxy"), ("hot_start", "proxy")):
        section = content.get(table)
        name = section.get(key) if isinstance(section, dict) else None
        if isinstance(name, str) and name not in CATALOGUE and (folder / name).is_dir():
            content[table][key] = str(folder / name)
    for settings in _settings_with_curve_file(content):
        # An absolute path is left as it is.
        settings["curve"] = str(folder / settings["curve"])


def _settings_with_curve_file(content: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the settings of methods whose curve is given by a path."""
    methods = content.get("methods")
    for settings in methods.values() if isinstance(methods, dict) else ():
        if isinstance(settings, dict) and isinstance(settings.get("curve"), str):
            yield settings


def merge_settings(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Copy nested settings with some of them changed.

    >>> merge_settings({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}})
    {'a': {'b': 3, 'c': 2}}
    """
    merged = copy.deepcopy(dict(base))
    for key, value in changes.items():
        if isinstance(value, Mapping) and isinstance(merged.get(key), dict):
            merged[key] = merge_settings(merged[key], value)
        else:
            merged[key] = copy.deepcopy(value)
    return merged


def nest_changes(changes: Changes) -> dict[str, dict[str, Any]]:
    """Return changes as nested settings, by the text or the dotted name that they were given as.

    >>> nest_changes({"training.rounds": 5})
    {'training.rounds': {'training': {'rounds': 5}}}
    """
    if isinstance(changes, Mapping):
        return {name: _nest(name.split("."), value) for name, value in changes.items()}
    return {text: parse_change(text) for text in changes}


def _nest(keys: Sequence[str], value: Any) -> dict[str, Any]:
    first, *rest = keys
    return {first: _nest(rest, value) if rest else value}


def parse_change(text: str) -> dict[str, Any]:
    """Parse ``a.b=1`` into nested settings; a value that is not valid TOML is a string.

    >>> parse_change("training.rounds=5")
    {'training': {'rounds': 5}}
    """
    name, sign, value = text.partition("=")
    keys = [key.strip() for key in name.split(".")]
    if not sign or not all(keys):
        raise InputError(f"change {text!r}: must be KEY=VALUE, such as training.rounds=5")
    try:
        table = tomllib.loads(f"x = {value}")
        parsed = table["x"] if len(table) == 1 else value
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    return _nest(keys, parsed)
