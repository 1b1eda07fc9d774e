"""The paper's models and a small sequence model, by name and from a seed."""

from pacdp.models.registry import MODELS, build_model, count_parameters

__all__ = ["MODELS", "build_model", "count_parameters"]
