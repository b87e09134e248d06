"""The public Python interface.

>>> import tensor_partitioner as tp
>>> plan = tp.plan(tp.model("mlp-2-16", batch=8), workers=4)
>>> tp.simulate(plan, "p2.8xlarge").total_bytes == plan.total_bytes
True

Each name is defined in one of the packages of `_HOMES`. The package is imported when the name is first used.
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
"""The folder that contains all packages of the project."""


class PackageError(ImportError):
    """A package of another distribution, or folder, has the name of one of the project's packages."""


def require_packages() -> None:
    """Raise a PackageError if a package of the project would be imported from another place."""
    for name in BESIDE:
        spec = find_spec(name)
        if spec is None:
            raise PackageError(f"{name}: expected it in {HOME}, found none: {REINSTALL}")
        place = Path(spec.origin or next(iter(spec.submodule_search_locations or ()))).resolve()
        if place.parent != HOME / name:
            raise PackageError(
                f"{name}: expected {DISTRIBUTION}'s package in {HOME}, found another that shadows it, {place}: "
                "rename it, uninstall it, or start from another folder"
            )


def overwritten(error: ImportError) -> str:
    """Return an error message if another distribution wrote files into the project's package; "" otherwise.

    `error` is the failed import.
    """
    name = (error.name or "").partition(".")[0]
    if name not in BESIDE:
        return ""
    installed = import_module("importlib.metadata").packages_distributions().get(name, ())  # slow: reads all files
    others = sorted(set(installed) - {DISTRIBUTION})
    if not others:
        return ""
    return (
        f"{name}: {', '.join(others)} installed a package of this name into {HOME}: pip uninstall "
        f"{' '.join(others)}, then {REINSTALL}"
    )


if TYPE_CHECKING:
    from planner import (
        diff as diff,
        explain as explain,
        from_torch as from_torch,
        load as load,
        load_operators as load_operators,
        lower as lower,
        model as model,
        summary as summary,
        training_graph as training_graph,
        why_not as why_not,
    )
    from tensor_partitioner.projection import project as project
    from tensor_partitioner.python import (
        decide as decide,
        decide_each as decide_each,
        plan as plan,
        simulate as simulate,
    )
    from topologies import load_topology as load_topology

__version__ = "0.3.0"

_HOMES = {
    "tensor_partitioner.python": ("decide", "decide_each", "plan", "simulate"),
    "tensor_partitioner.projection": ("project",),
    "topologies": ("load_topology",),
    "planner": (
        *("diff", "explain", "from_torch", "load", "load_operators", "lower", "model"),
        *("summary", "training_graph", "why_not"),
    ),
}
"""The public names, by the package that defines them."""


def __getattr__(name: str) -> object:
    """Import a public name from its package. Raises PackageError if another package shadows one of the project's."""
    for package, names in _HOMES.items():
        if name in names:
            require_packages()
            return getattr(import_module(package), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names."""
    return ["__version__", *(name for names in _HOMES.values() for name in names)]
