"""Experiments: TOML files with all settings of a training run except its seed.

Shipped experiments are loaded by name, others by path. Profiles (``smoke``, ``desk``, ``full``) are
smaller or larger versions of the same experiment, and ``--set training.rounds=5`` changes a single
setting.
"""

import copy
import tomllib
from collections.abc import Mapping, Sequence
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

# Settings by their dotted names, as {"training.rounds": 5}, or as texts, as "training.rounds=5".
Changes = Mapping[str, Any] | Sequence[str]

_ANY_CURVE = {"family": "power", "coefficients": (1.0, 0.0)}


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
        """The method with the settings it has here; by default the experiment's own."""
        chosen = name or self.method
        given = self.methods.get(chosen, {}) | dict(changes or {})
        missing = self.missing_settings(chosen, given)
        if missing:
            raise InputError(
                f"methods.{chosen}.{missing[0]}: is missing; pacdp fit makes one, or give it there "
                'such as { family = "power", coefficients = [1.0, 0.4] }'
            )
        return build_method(chosen, given)

    def missing_settings(self, name: str, given: Mapping[str, Any] | None = None) -> list[str]:
        """Settings that a method needs and has not got here."""
        known = self.methods.get(name, {}) if given is None else given
        return [key for key in find_method(name).required_settings if key not in known]


def list_experiments() -> list[str]:
    """The names of the experiments that come with the package.

    >>> list_experiments()
    ['cifar10', 'cifar100', 'heart', 'heart-dnn', 'heart-personalised', 'mnist']
    """
    files = resources.files("pacdp.experiments").joinpath("files").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def read_experiment(
    name: str, *, profile: str | None = None, changes: Changes = (), curves: bool = True
) -> Experiment:
    """An experiment by name or path, in one of its sizes, with single settings changed.

    Without ``curves`` files of curves are not read: they may not be there yet.

    >>> read_experiment("heart", changes=["training.rounds=2"]).training.rounds
    2
    """
    text, where = _text(name)
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{where}: is no TOML ({error})") from None
    if not curves:
        content = _without_curves(content)
    folder = Path(where).parent if Path(where).is_file() else None
    whole = _checked(content, where, folder)
    # Every size is read, so that a slip in one is found before it is wanted.
    sizes = {
        name: _checked(merge_settings(content, settings), f"{where}, profile {name}", folder)
        for name, settings in whole.profiles.items()
    }
    if profile is not None and profile not in sizes:
        raise InputError(f"profile = {profile!r}: {where} has {', '.join(sizes) or 'none'}")
    if not changes:
        return whole if profile is None else sizes[profile]
    if profile is not None:
        content = merge_settings(content, whole.profiles[profile])
    for change in nest_changes(changes).values():
        content = merge_settings(content, change)
    return _checked(content, where, folder)


def _checked(content: Mapping[str, Any], where: str, folder: Path | None) -> Experiment:
    """The settings as an experiment, and every method in it as a method."""
    try:
        made = Experiment.model_validate(_with_paths(dict(content), folder))
    except ValidationError as error:
        raise InputError(f"{where}: {explain_validation_error(error, Experiment)}") from None
    for name in {made.method, *made.methods}:
        import_method(name)
    import_model(made.model.name)
    for name in made.methods:
        # A curve may be fitted later; all else is checked now.
        made.build_method(name, dict.fromkeys(made.missing_settings(name), _ANY_CURVE))
    return made


def _text(name: str) -> tuple[str, str]:
    """The content of an experiment, and what to call it."""
    path = Path(name)
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8"), name
        except UnicodeDecodeError:
            raise InputError(f"{name}: is no text in UTF-8") from None
    if name in list_experiments():
        file = resources.files("pacdp.experiments").joinpath("files", f"{name}.toml")
        return file.read_text(encoding="utf-8"), name
    raise InputError(
        f"experiment = {name!r}: unknown; {suggest(name, list_experiments())}there are "
        f"{', '.join(list_experiments())}, or a TOML file"
    )


def merge_settings(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings with some of them changed.

    >>> merge_settings({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}})
    {'a': {'b': 3, 'c': 2}}
    """
    made = copy.deepcopy(dict(base))
    for key, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(made.get(key), dict)
        made[key] = merge_settings(made[key], value) if both else copy.deepcopy(value)
    return made


def nest_changes(changes: Changes) -> dict[str, dict[str, Any]]:
    """Changes as nested settings, each by the text or the dotted name by which it was given.

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
    """``a.b=1`` as nested settings; what is no TOML value is a string.

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


def _without_curves(content: dict[str, Any]) -> dict[str, Any]:
    """The settings without the paths of curves."""
    content = copy.deepcopy(content)
    methods = content.get("methods")
    for settings in methods.values() if isinstance(methods, dict) else ():
        if isinstance(settings, dict) and isinstance(settings.get("curve"), str):
            del settings["curve"]
    return content


def _with_paths(content: dict[str, Any], folder: Path | None) -> dict[str, Any]:
    """Paths are meant from where the file is: of curves, and of folders that lie beside it."""
    content = copy.deepcopy(content)
    if folder is None:
        return content
    for table, key in (("data", "name"), ("offline", "proxy"), ("hot_start", "proxy")):
        part = content.get(table)
        name = part.get(key) if isinstance(part, dict) else None
        if isinstance(name, str) and name not in CATALOGUE and (folder / name).is_dir():
            content[table][key] = str(folder / name)
    methods = content.get("methods")
    for settings in methods.values() if isinstance(methods, dict) else ():
        curve = settings.get("curve") if isinstance(settings, dict) else None
        if isinstance(curve, str) and not Path(curve).is_absolute():
            settings["curve"] = str(folder / curve)
    return content
