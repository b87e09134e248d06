"""Machines as data: their devices, memories and links, and the routes that traffic takes.

A public name is imported on first use, so a program that plans for no machine reads no machine files.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from topologies.kernels import (
        Estimates as Estimates,
        Kernel as Kernel,
        Product as Product,
        TransferAmounts as TransferAmounts,
    )
    from topologies.load import full_text as full_text, load_topology as load_topology, parse_topology as parse_topology
    from topologies.machine import Device as Device, Machine as Machine, Memory as Memory, levels as levels
    from topologies.reading import available as available
    from topologies.schema import TopologyError as TopologyError

_HOMES = {
    "topologies.schema": ("TopologyError",),
    "topologies.kernels": ("Estimates", "Kernel", "Product", "TransferAmounts"),
    "topologies.reading": ("available",),
    "topologies.load": ("full_text", "load_topology", "parse_topology"),
    "topologies.machine": ("Device", "Machine", "Memory", "levels"),
}


def __getattr__(name: str) -> object:
    """Return a public name from the module that defines it."""
    for module, names in _HOMES.items():
        if name in names:
            import_module("topologies.tree")  # registers how machines are displayed
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
