"""The click commands for the reference pages."""

from tensor_partitioner.commands import calibrate as calibrating
from tensor_partitioner.commands import compare as comparing
from tensor_partitioner.commands import decide as deciding
from tensor_partitioner.commands import diagnose as diagnosing
from tensor_partitioner.commands import execute as executing
from tensor_partitioner.commands import export as exporting
from tensor_partitioner.commands import operators as checking
from tensor_partitioner.commands import plan as planning
from tensor_partitioner.commands import report as reporting
from tensor_partitioner.commands import simulate as simulating
from tensor_partitioner.commands import topo as drawing

calibrate, execute = calibrating.calibrate, executing.execute
decide, diagnose, plan, simulate, compare, topo, operators, export, report = (
    module.main.command
    for module in (deciding, diagnosing, planning, simulating, comparing, drawing, checking, exporting, reporting)
)
