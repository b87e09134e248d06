"""Graphs from PyTorch's modules: traced without being run, and differentiated here."""

from planner.pytorch.importing import from_torch
from planner.pytorch.user_model import graph_of

__all__ = ["from_torch", "graph_of"]
