"""The packages of the project, and what is in the way where another has the name of one."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

DISTRIBUTION = "tensor-partitioner"
REINSTALL = f"pip install --force-reinstall {DISTRIBUTION}"
PACKAGES = ("tdl", "topologies", "planner", "simulator", "executor")
HOME = Path(__file__).resolve().parents[1]
"""The folder in which they all lie."""


class PackageError(ImportError):
    """A package of the project would be imported from elsewhere."""


def require_packages() -> None:
    """Raise a PackageError where something else would be imported by the name of one of the project's packages."""
    for name in PACKAGES:
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
    if name not in PACKAGES:
        return ""
    installed = import_module("importlib.metadata").packages_distributions().get(name, ())  # looks through all
    others = sorted(set(installed) - {DISTRIBUTION})
    if not others:
        return ""
    return (
        f"{name}: {', '.join(others)} has put a package of this name into {HOME}: pip uninstall "
        f"{' '.join(others)}, then {REINSTALL}"
    )
