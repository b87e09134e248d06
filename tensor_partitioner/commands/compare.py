"""The command `compare`."""

from __future__ import annotations

from pathlib import Path

import click

from planner.failures import JOB_FAILED
from planner.report.compare import bytes_table, compare, conclusion, memory_table, notes, seconds_table
from planner.report.schema import read_reports
from planner.report.task_tables import task_tables
from tensor_partitioner.commands.console import command_errors, stdout
from tensor_partitioner.commands.help import Command
from tensor_partitioner.display import printable

EXAMPLES = (
    "compare simulated.json executed.json",
    "compare a.json b.json --pairs",
)


@command_errors
@click.command("compare", cls=Command, examples=EXAMPLES, context_settings={"show_default": True})
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="REPORT.json...")
@click.option("--pairs", is_flag=True, help="A row for every pair of workers, however many there are.")
@click.option("--tasks", is_flag=True, help="The tasks where prediction and measurement differ most.")
@click.pass_context
def main(context: click.Context, files: tuple[Path, ...], pairs: bool, tasks: bool) -> None:
    """Lay reports of `simulate --json` and `execute --json` side by side.

    Exit status 1 where any pair of workers moved other bytes than planned, simulated or measured elsewhere, or where an
    arena is not as large as predicted.
    """
    reports = [report for file in files for report in read_reports(file)]
    if not reports:
        raise click.UsageError(f"expected a report in {', '.join(map(str, files))}, found none")
    comparisons = compare(reports)
    console = stdout()
    for comparison in comparisons:
        console.print(printable(comparison.heading), style="bold")
        console.print(bytes_table(comparison, every_pair=pairs))
        console.print(memory_table(comparison))
        if tasks:
            console.print(*task_tables(comparison), sep="\n")
    console.print(seconds_table(comparisons))
    for line in (line for comparison in comparisons for line in (*notes(comparison), conclusion(comparison))):
        if line:
            console.print(printable(line))
    if any(
        comparison.unequal_pairs or comparison.unequal_arenas or comparison.misallocated for comparison in comparisons
    ):
        context.exit(JOB_FAILED)
