"""Machines as data: what devices, memories and links there are, and how traffic crosses them."""

from topologies import tables
from topologies.errors import TopologyError, TopologyWarning
from topologies.kernels import Kernel, Product, Window
from topologies.level import Level, levels
from topologies.library import available
from topologies.load import full_text, load_topology, parse_topology
from topologies.machine import CATEGORIES, Device, Link, Machine, Memory, Resource, Route
from topologies.measured import Estimates, TransferAmounts

__all__ = [
    "CATEGORIES",
    "Device",
    "Estimates",
    "Kernel",
    "Level",
    "Link",
    "Machine",
    "Memory",
    "Product",
    "Resource",
    "Route",
    "TopologyError",
    "TopologyWarning",
    "TransferAmounts",
    "Window",
    "available",
    "full_text",
    "levels",
    "load_topology",
    "parse_topology",
    "tables",
]
