"""How the commands speak: the record that both interpreters report, tables, traces, the comparison, the console."""

from planner.report import plan_facts, tables

__all__ = ["plan_facts", "tables"]  # they register how objects show themselves
