"""Reports: the record of simulations and runs, tables, traces and comparisons."""

from planner.report import plan_facts, tables

__all__ = ["plan_facts", "tables"]  # importing them registers the tables of objects
