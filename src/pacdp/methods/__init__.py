"""PAC-DP and the baselines that it is compared with, behind one interface."""

from pacdp.methods.base import (
    Answer,
    CalibrationRequest,
    ClientContext,
    Method,
    PlannedClient,
    ReleaseSpec,
    SharedState,
)
from pacdp.methods.pac_dp import PacDp
from pacdp.methods.registry import (
    METHODS,
    build_method,
    find_method,
    import_method,
    name_of,
    register_method,
)

__all__ = [
    "METHODS",
    "Answer",
    "CalibrationRequest",
    "ClientContext",
    "Method",
    "PacDp",
    "PlannedClient",
    "ReleaseSpec",
    "SharedState",
    "build_method",
    "find_method",
    "import_method",
    "name_of",
    "register_method",
]
