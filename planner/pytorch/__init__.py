"""Graphs from PyTorch's modules: traced without being run, and differentiated here."""

from planner.pytorch.importing import from_torch

__all__ = ["from_torch"]
