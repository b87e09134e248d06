"""How the commands speak: the record that both interpreters report, tables, traces, the comparison, the console."""

from planner.report import summary, tables

__all__ = ["summary", "tables"]  # they register how objects show themselves
