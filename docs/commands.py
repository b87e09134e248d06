"""The click commands for the reference pages."""

from tensor_partitioner.commands import (
    calibrate as calibrating,
    compare as comparing,
    decide as deciding,
    diagnose as diagnosing,
    execute as executing,
    export as exporting,
    operators as checking,
    plan as planning,
    report as reporting,
    simulate as simulating,
    topo as drawing,
)

calibrate, execute = calibrating.calibrate, executing.execute
decide, diagnose, plan, simulate, compare, topo, operators, export, report = (
    module.main.command
    for module in (deciding, diagnosing, planning, simulating, comparing, drawing, checking, exporting, reporting)
)
