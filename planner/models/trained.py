"""How a model of the zoo is trained that is decided for, or split by name, where nothing else is said."""

from __future__ import annotations

from collections.abc import Mapping

from planner.graph.optimizers import constants_of
from planner.models.zoo import is_zoo_name, option_names
from topologies import Machine

OPTIMIZER = "adamw"
PRECISIONS = (("bfloat16", "mixed"), ("float16", "mixed-float16"))
"""In which precision, as devices have it; float32 on those that have neither."""

HALF_EPS = 1e-4
"""Adam's in half precision, where less is nothing."""


def trained_as(model: str, machine: Machine | None, given: Mapping[str, object] | None = None) -> dict[str, object]:
    """Return a model's options: what is `given`, and of a model of the zoo what it is trained with besides.

    Without a machine it is one whose devices multiply in bfloat16.
    """
    options = dict(given or {})
    if not is_zoo_name(model):
        return options
    names = option_names(model)
    if "dtype" in names:
        options.setdefault("dtype", _precision(machine))
    if "optimizer" in names:
        constants = constants_of(str(options.setdefault("optimizer", OPTIMIZER)))
        if options.get("dtype") == "mixed-float16" and "eps" in constants:
            options.setdefault("eps", HALF_EPS)
    return options


def _precision(machine: Machine | None) -> str:
    if machine is None:
        return PRECISIONS[0][1]
    specs = [device.spec for device in machine.devices]
    rates = [spec.peak_flop_per_s.by_dtype() if not spec.is_host_rank else {} for spec in specs]
    return next((name for dtype, name in PRECISIONS if all(dtype in of for of in rates)), "float32")
