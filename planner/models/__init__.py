"""The zoo: training graphs of the papers' models, by name and options."""

from planner.models.options import ModelOptions
from planner.models.zoo import ZOO, build

__all__ = ["ZOO", "ModelOptions", "build"]
