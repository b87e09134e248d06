"""The zoo: training graphs of the papers' models, by name and options."""

from planner.models.options import Training as Training
from planner.models.options import option as option
from planner.models.zoo import FAMILIES as FAMILIES
from planner.models.zoo import Family as Family
from planner.models.zoo import build as build
from planner.models.zoo import model_options as model_options
