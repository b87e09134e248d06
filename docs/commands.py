"""The commands as click has them, for the reference."""

from tensor_partitioner.commands import calibrate as calibrating
from tensor_partitioner.commands import compare as comparing
from tensor_partitioner.commands import execute as executing
from tensor_partitioner.commands import export as exporting
from tensor_partitioner.commands import operators as checking
from tensor_partitioner.commands import plan as planning
from tensor_partitioner.commands import report as reporting
from tensor_partitioner.commands import simulate as simulating
from tensor_partitioner.commands import topo as drawing

calibrate, execute = calibrating.calibrate, executing.execute
plan, simulate, compare, topo, operators, export, report = (
    module.main.command for module in (planning, simulating, comparing, drawing, checking, exporting, reporting)
)
