"""An experiment: a TOML file that says everything about a training but the seed of its run.

Shipped ones go by name, one's own by path. Profiles (`smoke`, `desk`, `full`) are smaller or larger
sizes of the same thing, and ``--set training.rounds=5`` changes a single setting.
"""

import copy
import difflib
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import Field, PositiveInt, ValidationError

from pacdp.errors import InputError
from pacdp.federation import Aggregation, HotStart, Model, Privacy, Training
from pacdp.methods import METHODS, Method, method
from pacdp.settings import Settings, explain

PROFILES = ("smoke", "desk", "full")


class Data(Settings):
    """The data set, and who holds what."""

    name: str = Field(description="A data set's name, or a folder with a file for each client.")
    options: dict[str, Any] = Field({}, description="Its options, such as split or unit.")
    partition: str | None = Field(
        None, description="natural, iid, dirichlet, shards, quantity or near-global."
    )
    clients: PositiveInt | None = Field(None, description="How many, unless natural.")
    settings: dict[str, float] = Field({}, description="The partition's, such as alpha.")


class Experiment(Settings):
    """All settings of an experiment."""

    name: str = Field(description="What it is called.")
    description: str = Field("", description="What it is, in a line.")
    method: str = Field("pac-dp", description="The method that is run unless another is named.")
    data: Data
    model: Model = Field(Model(), description="The model.")
    training: Training
    server: Aggregation = Field(Aggregation(), description="How updates are combined.")
    privacy: Privacy = Field(Privacy(), description="What clients are promised.")
    hot_start: HotStart | None = Field(None, description="A first model from public data.")
    evaluate_every: PositiveInt = Field(1, description="Rounds between looks at the test records.")
    failure_rate: float = Field(0.0, ge=0, lt=1, description="How often a client fails.")
    methods: dict[str, dict[str, Any]] = Field({}, description="Settings of methods, by name.")
    profiles: dict[str, dict[str, Any]] = Field({}, description="Changes for smoke, desk, full.")

    def made_method(
        self, name: str | None = None, changes: Mapping[str, Any] | None = None
    ) -> Method:
        """The method with the settings it has here; by default the experiment's own."""
        chosen = name or self.method
        given = self.methods.get(chosen, {}) | dict(changes or {})
        lacking = (
            [key for key in METHODS[chosen].needs if key not in given] if chosen in METHODS else []
        )
        if lacking:
            raise InputError(
                f"methods.{chosen}.{lacking[0]}: is missing; give one there, such as "
                '{ family = "power", coefficients = [1.0, 0.4] } or the path of a curve file'
            )
        return method(chosen, given)


def shipped() -> list[str]:
    """The names of the experiments that come with the package.

    >>> shipped()
    ['heart', 'heart-personalised']
    """
    files = resources.files("pacdp.experiments").joinpath("files").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def read_experiment(
    name: str, *, profile: str | None = None, changes: Sequence[str] = ()
) -> Experiment:
    """An experiment by name or path, in one of its sizes, with single settings changed.

    >>> read_experiment("heart", changes=["training.rounds=2"]).training.rounds
    2
    """
    text, where = _text(name)
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{where}: is no TOML ({error})") from None
    if profile is not None:
        profiles = content.get("profiles", {})
        if profile not in profiles:
            raise InputError(
                f"profile = {profile!r}: {where} has {', '.join(profiles) or 'no profiles'}"
            )
        content = merged(content, profiles[profile])
    for change in changes:
        content = merged(content, _change(change))
    folder = Path(where).parent if Path(where).is_file() else None
    try:
        return Experiment.model_validate(_with_paths(content, folder))
    except ValidationError as error:
        raise InputError(f"{where}: {explain(error, Experiment)}") from None


def _text(name: str) -> tuple[str, str]:
    """The content of an experiment, and what to call it."""
    path = Path(name)
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8"), name
        except UnicodeDecodeError:
            raise InputError(f"{name}: is no text in UTF-8") from None
    if name in shipped():
        file = resources.files("pacdp.experiments").joinpath("files", f"{name}.toml")
        return file.read_text(encoding="utf-8"), name
    near = difflib.get_close_matches(name, shipped(), n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    raise InputError(
        f"experiment = {name!r}: unknown; {meant}there are {', '.join(shipped())}, or a TOML file"
    )


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings with some of them changed.

    >>> merged({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}})
    {'a': {'b': 3, 'c': 2}}
    """
    made = copy.deepcopy(dict(base))
    for key, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(made.get(key), dict)
        made[key] = merged(made[key], value) if both else copy.deepcopy(value)
    return made


def _change(text: str) -> dict[str, Any]:
    """``a.b=1`` as nested settings; what is no TOML value is a string."""
    name, sign, value = text.partition("=")
    keys = [key.strip() for key in name.split(".")]
    if not sign or not all(keys):
        raise InputError(f"--set {text!r}: must be KEY=VALUE, such as training.rounds=5")
    try:
        parsed = tomllib.loads(f"x = {value}")["x"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    for key in reversed(keys):
        parsed = {key: parsed}
    return dict(parsed)


def _with_paths(content: dict[str, Any], folder: Path | None) -> dict[str, Any]:
    """Paths of curves are meant from where the file is."""
    for settings in content.get("methods", {}).values():
        curve = settings.get("curve") if isinstance(settings, dict) else None
        if isinstance(curve, str) and folder is not None and not Path(curve).is_absolute():
            settings["curve"] = str(folder / curve)
    return content
