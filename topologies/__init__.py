"""Machines as data: their devices, memories and links, and the routes that traffic takes.

A public name is imported on first use, so a program that plans for no machine reads no machine files.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from topologies.kernels import Kernel, Product
    from topologies.load import full_text, load_topology, parse_topology
    from topologies.machine import Device, Machine, Memory, levels
    from topologies.measured import Estimates, TransferAmounts
    from topologies.reading import available
    from topologies.schema import TopologyError

_HOMES = {
    "topologies.schema": ("TopologyError",),
    "topologies.kernels": ("Kernel", "Product"),
    "topologies.reading": ("available",),
    "topologies.load": ("full_text", "load_topology", "parse_topology"),
    "topologies.machine": ("Device", "Machine", "Memory", "levels"),
    "topologies.measured": ("Estimates", "TransferAmounts"),
}
__all__ = [
    "Device",
    "Estimates",
    "Kernel",
    "Machine",
    "Memory",
    "Product",
    "TopologyError",
    "TransferAmounts",
    "available",
    "full_text",
    "levels",
    "load_topology",
    "parse_topology",
]


def __getattr__(name: str) -> object:
    """Return a public name from the module that defines it."""
    for module, names in _HOMES.items():
        if name in names:
            import_module("topologies.tree")  # registers how machines are displayed
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
