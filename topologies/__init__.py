"""Machines as data: what devices, memories and links there are, and how traffic crosses them."""

from topologies import tables
from topologies.errors import TopologyError
from topologies.kernels import Kernel, Product, Window
from topologies.level import Level, levels
from topologies.load import available, load_topology, parse_topology
from topologies.machine import CATEGORIES, Device, Link, Machine, Memory, Resource, Route

__all__ = [
    "CATEGORIES",
    "Device",
    "Kernel",
    "Level",
    "Link",
    "Machine",
    "Memory",
    "Product",
    "Resource",
    "Route",
    "TopologyError",
    "Window",
    "available",
    "levels",
    "load_topology",
    "parse_topology",
    "tables",
]
