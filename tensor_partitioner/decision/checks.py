"""What is asked of what a decision is given: types, and devices that are alike."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from planner.errors import InputError
from planner.graph.ir import Graph
from simulator.projection.cluster import Cluster
from topologies import Machine, TopologyError


def require_types(model: object, machine: object, batch: object, budget_s: object, pins: Sequence[str]) -> None:
    """Raise an InputError where an argument of `decide` is of another type, or a number is not above 0."""
    if not isinstance(model, str | Graph):
        raise InputError(f"model: expected a name, a file or a graph, found {model!r}")
    if not isinstance(machine, str | Path | Machine):
        raise InputError(f"machine: expected a name, a file or a machine, found {machine!r}")
    if batch is not None and not (isinstance(batch, int) and batch > 0):
        raise InputError(f"batch: expected a whole number above 0, found {batch!r}")
    if not isinstance(budget_s, int | float) or not 0 < budget_s < float("inf"):
        raise InputError(f"budget: expected seconds above 0, found {budget_s!r}")
    if isinstance(pins, str):
        raise InputError(f"pins: expected a list, as in ['tp=4'], found {pins!r}")


MOST_DEVICES = 1 << 16
"""Collectives among more would take long to price, rank by rank."""


def require_few(machine: Cluster) -> None:
    """Raise a TopologyError where there are more devices than ways are searched for."""
    if machine.devices > MOST_DEVICES:
        raise TopologyError(
            f"{machine.name}: expected at most {MOST_DEVICES} devices to decide for, found {machine.devices}; "
            "simulate --project takes more"
        )


def is_alike(machine: Cluster) -> bool:
    """Tell if one device stands for all of a machine."""
    specs = {device.spec.name: device.spec for device in machine.built.devices}
    return len(specs) == 1 and all(spec.measured is None for spec in specs.values())


def require_alike(machine: Cluster) -> None:
    """Raise a TopologyError where a projection is of no use.

    It looks at one device that stands for all, with a stack of software for GPUs: not at devices that differ, nor at
    ranks of a calibrated host, which share its cores and memory.
    """
    if any(device.spec.measured is not None for device in machine.built.devices):
        raise TopologyError(
            f"{machine.name}: expected a machine that is not calibrated for a projection, found measured times of its "
            "ranks; decide, and --stack ours, go by these"
        )
    types = sorted({device.spec.name for device in machine.built.devices})
    if len(types) > 1:
        raise TopologyError(
            f"{machine.name}: expected devices of one type for a projection, found {', '.join(types)}; "
            "decide, and --stack ours, simulate unlike ones"
        )
