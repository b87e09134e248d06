"""The command `compare`."""

from __future__ import annotations

from pathlib import Path

import click

from planner.failures import JOB_FAILED
from planner.report.compare import (
    bytes_table,
    compare,
    conclusion,
    fastest,
    memory_table,
    notes,
    ranking_table,
    task_tables,
)
from planner.report.schema import read_reports
from tensor_partitioner.commands.console import Command, command_errors, stdout
from tensor_partitioner.display import printable

EXAMPLES = (
    "compare simulated.json executed.json",
    "compare a.json b.json --pairs",
)


@command_errors
@click.command("compare", cls=Command, examples=EXAMPLES, context_settings={"show_default": True})
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="REPORT.json...")
@click.option(
    "--pairs", is_flag=True, help="Show the bytes of every pair of workers, and arenas, where they are equal, too."
)
@click.option("--tasks", is_flag=True, help="The tasks where prediction and measurement differ most.")
@click.pass_context
def main(context: click.Context, files: tuple[Path, ...], pairs: bool, tasks: bool) -> None:
    """Lay reports of `simulate --json` and `execute --json` side by side: a row for each, the best marked.

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
        if pairs or comparison.unequal_pairs:
            console.print(bytes_table(comparison, every_pair=pairs))
        if pairs or comparison.unequal_arenas or comparison.misallocated:
            console.print(memory_table(comparison))
        if tasks:
            console.print(*task_tables(comparison), sep="\n")
    console.print(ranking_table(comparisons))
    lines = [line for comparison in comparisons for line in (*notes(comparison), conclusion(comparison))]
    for line in filter(None, (*lines, fastest(comparisons))):
        console.print(printable(line))
    if any(
        comparison.unequal_pairs or comparison.unequal_arenas or comparison.misallocated for comparison in comparisons
    ):
        context.exit(JOB_FAILED)
