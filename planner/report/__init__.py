"""How the commands speak: the record that both interpreters report, tables, traces, the comparison, the console."""

from planner.report import summary, tables
from planner.report.schema import (
    BufferUse,
    CheckResult,
    DeviceMemory,
    LinkUse,
    OutsideArena,
    Report,
    ReportError,
    finite,
    read_reports,
    write_reports,
)

__all__ = [
    "BufferUse",
    "CheckResult",
    "DeviceMemory",
    "LinkUse",
    "OutsideArena",
    "Report",
    "ReportError",
    "finite",
    "read_reports",
    "summary",
    "tables",
    "write_reports",
]
