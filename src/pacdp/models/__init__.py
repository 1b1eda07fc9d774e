"""The paper's models and a small sequence model, by name and from a seed."""

from pacdp.models.build import MODELS, build, parameter_count

__all__ = ["MODELS", "build", "parameter_count"]
