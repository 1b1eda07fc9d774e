"""The registry of methods by name; custom methods are found as ``module:Class``."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from pacdp.config import explain_validation_error
from pacdp.errors import InputError
from pacdp.methods.base import Method
from pacdp.methods.dp_fedavg import DpFedAvg
from pacdp.methods.fedavg import FedAvg
from pacdp.methods.fixed import Fixed
from pacdp.methods.nbafl import Nbafl, NbaflOriginal
from pacdp.methods.noise_once import NoiseOnce
from pacdp.methods.pac_dp import PacDp
from pacdp.methods.quantile import AdaptiveQuantile, MedianTracker, NonPrivateQuantile
from pacdp.methods.rpdp_fl import RpdpFl
from pacdp.methods.rpdp_fl_original import RpdpFlOriginal
from pacdp.methods.uniform_levels import DropSmallBudgets, SmallestBudget
from pacdp.plugins import find_object, import_object, is_path
from pacdp.validation import suggest

METHODS: dict[str, type[Method]] = {
    kind.name: kind
    for kind in (
        *(PacDp, Fixed, DpFedAvg, FedAvg, Nbafl, NbaflOriginal, RpdpFl, RpdpFlOriginal),
        *(SmallestBudget, DropSmallBudgets),
        *(MedianTracker, AdaptiveQuantile, NonPrivateQuantile, NoiseOnce),
    )
}


def register_method(kind: type[Method]) -> type[Method]:
    """Register a custom method under its name. Usable as a decorator."""
    METHODS[kind.name] = kind
    return kind


def import_method(path: str) -> str:
    """Import a method by ``module:Class`` and return the name under which plans refer to it.

    A registered name is returned as it is.
    """
    if is_path(path):
        import_object("method", path)
        find_method(path)
    return path


def find_method(name: str) -> type[Method]:
    """Return the class of a method by its registered name, or by the path of an imported class.

    >>> find_method("fixed")
    <class 'pacdp.methods.fixed.Fixed'>
    >>> find_method("fixt")
    Traceback (most recent call last):
    ...
    pacdp.errors.InputError: method = 'fixt': unknown; did you mean fixed? There are pac-dp, ...
    """
    if name in METHODS:
        return METHODS[name]
    if not is_path(name):
        near = suggest(name, METHODS)
        raise InputError(f"method = {name!r}: unknown; {near}There are {', '.join(METHODS)}")
    kind = find_object("method", name)
    if not (isinstance(kind, type) and issubclass(kind, Method)):
        raise InputError(f"method = {name!r}: must be a subclass of pacdp.methods.Method")
    return kind


def build_method(name: str, settings: Mapping[str, Any] | None = None) -> Method:
    """Return the method of that name with these settings.

    >>> build_method("fixed", {"clipping_bound": 0.5})
    Fixed(clipping_bound=0.5)
    """
    kind = find_method(name)
    try:
        return kind(**(settings or {}))
    except ValidationError as error:
        raise InputError(explain_validation_error(error, kind, f"methods.{name}")) from None


def name_of(method: Method) -> str:
    """Return the name under which a plan stores a method: registered, or the path of its class.

    >>> name_of(Fixed())
    'fixed'
    """
    kind = type(method)
    return kind.name if METHODS.get(kind.name) is kind else f"{kind.__module__}:{kind.__qualname__}"
