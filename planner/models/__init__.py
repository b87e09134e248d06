"""The zoo: training graphs of the papers' models, by name and options."""

from planner.models.options import Training, option
from planner.models.zoo import FAMILIES, Family, build, model_options

__all__ = ["FAMILIES", "Family", "Training", "build", "model_options", "option"]
