"""The zoo: training graphs of the papers' models, by name and options."""

from planner.models.options import Training as Training, option as option
from planner.models.zoo import FAMILIES as FAMILIES, Family as Family, build as build, model_options as model_options
