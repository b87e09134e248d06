"""The zoo: training graphs of models, by name and options."""

from planner.models.options import Training as Training, option as option
from planner.models.zoo import (
    FAMILIES as FAMILIES,
    Family as Family,
    build as build,
    families as families,
    model_options as model_options,
)
