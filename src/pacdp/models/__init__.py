"""Models by name: those of the paper, and a small sequence model."""

from pacdp.models.registry import (
    MODELS,
    build_model,
    count_parameters,
    import_model,
    register_model,
)

__all__ = ["MODELS", "build_model", "count_parameters", "import_model", "register_model"]
