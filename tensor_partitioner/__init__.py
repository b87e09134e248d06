"""The front door: what users call, wherever it lives.

>>> import tensor_partitioner as tp
>>> plan = tp.plan(tp.model("mlp-2-16", batch=8), workers=4)
>>> tp.simulate(plan, "p2.8xlarge").total_bytes == plan.total_bytes
True

Every name is that of a package, which is loaded when the name is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from tensor_partitioner.packages import require_packages

if TYPE_CHECKING:
    from planner import (
        Workbench,
        diff,
        explain,
        from_torch,
        frontier,
        load,
        load_operators,
        lower,
        model,
        plan,
        summary,
        training_graph,
    )
    from simulator import simulate
    from tensor_partitioner.decision import decide
    from tensor_partitioner.projection import project
    from topologies import load_topology

__version__ = "0.3.0"

PACKAGES = ("planner", "topologies", "simulator", "tensor_partitioner.decision", "tensor_partitioner.projection")
"""Where the names are, in the order in which they are looked for."""

__all__ = [
    "Workbench",
    "decide",
    "diff",
    "explain",
    "from_torch",
    "frontier",
    "load",
    "load_operators",
    "load_topology",
    "lower",
    "model",
    "plan",
    "project",
    "simulate",
    "summary",
    "training_graph",
]


def __getattr__(name: str) -> object:
    """Return the name of the package that has it; PackageError where another one lies in its way."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_packages()
    packages = map(import_module, PACKAGES)
    return next(getattr(package, name) for package in packages if hasattr(package, name))


def __dir__() -> list[str]:
    """Return the public names."""
    return ["__version__", *__all__]
