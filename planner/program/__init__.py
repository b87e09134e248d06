"""Programs: what every worker does in one training iteration, lowered from a plan."""

from planner.program import tables

__all__ = ["tables"]  # it registers how programs show themselves
