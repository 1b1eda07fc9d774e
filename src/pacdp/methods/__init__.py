"""PAC-DP and the baselines that it is compared with, behind one interface."""

from pacdp.methods.base import Answer, ClientContext, Method, SharedState
from pacdp.methods.client_plan import CalibrationRequest, ClientPlan, LevelPlan, ReleaseSpec
from pacdp.methods.pac_dp import PacDp
from pacdp.methods.registry import (
    METHODS,
    build_method,
    find_method,
    import_method,
    name_of,
    register_method,
)
from pacdp.methods.uploads import UploadTerms

__all__ = [
    "METHODS",
    "Answer",
    "CalibrationRequest",
    "ClientContext",
    "ClientPlan",
    "LevelPlan",
    "Method",
    "PacDp",
    "ReleaseSpec",
    "SharedState",
    "UploadTerms",
    "build_method",
    "find_method",
    "import_method",
    "name_of",
    "register_method",
]
