"""Machines of any size, represented by a few of their nodes.

In a family with a number in its name (`hgx-h100-nodes-2048`), all nodes are equal and do the same in a step. Only a few
are built; costs that depend on the number of participants are computed from that number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from topologies import Machine, TopologyError, load_topology
from topologies.described import is_described
from topologies.machine import node_of

NODES_BUILT = 16
_FAMILY = re.compile(r"(.+-)([1-9]\d*)()")
_LINE = re.compile(r"()([1-9]\d*)( ?x ?\d+ ?x ?.+)")
"""A machine described in one line, with several nodes (topologies/described.py)."""


@dataclass(frozen=True, slots=True, eq=False)
class Cluster:
    """A machine of `devices`, `per_node` in each node. `built` has the first of them."""

    name: str
    built: Machine
    devices: int
    per_node: int

    def place(self, device: int) -> int:
        """Return the built device that is equivalent to `device`.

        Devices of the first node and of others are distinguished.
        """
        if device < len(self.built.devices):
            return device
        node, place = divmod(device, self.per_node)
        nodes = len(self.built.devices) // self.per_node
        return (node % (nodes - 1) + 1) * self.per_node + place


@lru_cache(64)
def cluster(machine: str | Path | Machine) -> Cluster:
    """Return a machine by name or file, built only as far as needed. Raises TopologyError as `load_topology`."""
    if isinstance(machine, Machine):
        return cluster_of(machine)
    name = str(machine)
    match = _LINE.fullmatch(name) if is_described(name) else _FAMILY.fullmatch(name)
    if match is None or (nodes := int(match[2])) <= NODES_BUILT or Path(name).is_file():
        return cluster_of(load_topology(machine))
    built = load_topology(f"{match[1]}{NODES_BUILT}{match[3]}")
    if not node_of(built.devices[0].name):
        return cluster_of(load_topology(machine))
    per_node = len(built.devices) // NODES_BUILT
    return Cluster(name, built, nodes * per_node, per_node)


def cluster_of(machine: Machine) -> Cluster:
    """Return a machine that is fully built."""
    sizes = {len(devices) for devices in machine.nodes_of(range(len(machine.devices))).values()}
    return Cluster(machine.name, machine, len(machine.devices), sizes.pop() if len(sizes) == 1 else 1)


def require_devices(machine: Cluster, workers: int) -> None:
    """Raise a TopologyError if there are more workers than devices."""
    if workers > machine.devices:
        raise TopologyError(f"{machine.name}: expected at least {workers} devices, found {machine.devices}")
