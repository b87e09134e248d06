"""The front door: what users call, wherever it lives.

>>> import tensor_partitioner as tp
>>> plan = tp.plan(tp.model("mlp-2-16", batch=8), workers=4)
>>> tp.simulate(plan, "p2.8xlarge").total_bytes == plan.total_bytes
True

Every name is that of a package, which is loaded when the name is asked for.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

DISTRIBUTION = "tensor-partitioner"
REINSTALL = f"pip install --force-reinstall {DISTRIBUTION}"
BESIDE = ("tdl", "topologies", "planner", "simulator", "executor")
HOME = Path(__file__).resolve().parents[1]
"""The folder in which they all lie."""


class PackageError(ImportError):
    """A package of the project would be imported from elsewhere."""


def require_packages() -> None:
    """Raise a PackageError where something else would be imported by the name of one of the project's packages."""
    for name in BESIDE:
        spec = find_spec(name)
        if spec is None:
            raise PackageError(f"{name}: expected it in {HOME}, found none: {REINSTALL}")
        place = Path(spec.origin or next(iter(spec.submodule_search_locations or ()))).resolve()
        if place.parent != HOME / name:
            raise PackageError(
                f"{name}: expected {DISTRIBUTION}'s package in {HOME}, found another in its way, {place}: "
                "rename it, uninstall it, or start from another folder"
            )


def overwritten(error: ImportError) -> str:
    """Return what to say where another distribution put files into a package of the project; else nothing."""
    name = (error.name or "").partition(".")[0]
    if name not in BESIDE:
        return ""
    installed = import_module("importlib.metadata").packages_distributions().get(name, ())  # looks through all
    others = sorted(set(installed) - {DISTRIBUTION})
    if not others:
        return ""
    return (
        f"{name}: {', '.join(others)} has put a package of this name into {HOME}: pip uninstall "
        f"{' '.join(others)}, then {REINSTALL}"
    )


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
