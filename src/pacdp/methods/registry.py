"""Every method by its name."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from pacdp.config import explain
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
from pacdp.validation import meant

METHODS: dict[str, type[Method]] = {
    kind.name: kind
    for kind in (
        *(PacDp, Fixed, DpFedAvg, FedAvg, Nbafl, NbaflOriginal, RpdpFl),
        *(MedianTracker, AdaptiveQuantile, NonPrivateQuantile, NoiseOnce),
    )
}


def register(kind: type[Method]) -> type[Method]:
    """Make a method of one's own known by its name. Usable as a decorator."""
    METHODS[kind.name] = kind
    return kind


def method(name: str, settings: Mapping[str, Any] | None = None) -> Method:
    """The method of that name with these settings.

    >>> method("fixed", {"clipping_bound": 0.5})
    Fixed(clipping_bound=0.5)
    >>> method("fixt")
    Traceback (most recent call last):
    ...
    pacdp.errors.InputError: method = 'fixt': unknown; did you mean fixed? There are pac-dp, ...
    """
    if name not in METHODS:
        near = meant(name, METHODS)
        raise InputError(f"method = {name!r}: unknown; {near}There are {', '.join(METHODS)}")
    try:
        return METHODS[name](**(settings or {}))
    except ValidationError as error:
        raise InputError(explain(error, METHODS[name], f"methods.{name}")) from None
