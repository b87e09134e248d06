"""What the simulator and the executor report: one schema, tables, traces, the comparison, and the commands' manners."""

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
    "write_reports",
]
