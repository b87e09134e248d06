"""The command `compare`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from rich.console import RenderableType

from planner.failures import JOB_FAILED
from planner.files import format_of, read_input
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
from planner.report.profiles import beside_profile, read_profile
from planner.report.profiles.profile import mean_of
from planner.report.schema import read_reports
from tensor_partitioner.commands.console import Command, command_errors, stdout
from tensor_partitioner.decision.answer import assumed, title
from tensor_partitioner.decision.record import load_decision
from tensor_partitioner.decision.varied import Varied, varied_table
from tensor_partitioner.decision.why import difference
from tensor_partitioner.display import printable

EXAMPLES = (
    "compare simulated.json executed.json",
    "compare a.json b.json --pairs",
    "compare decision-a.json decision-b.json",
    "compare predicted.json --profile trace.json.gz",
)

PROFILE_HELP = (
    "Compare one prediction with a profile, largest difference first: a trace of PyTorch's profiler "
    "(.json, .json.gz) or an Nsight Systems export (.sqlite). Repeatable: several ranks are averaged."
)


@command_errors
@click.command("compare", cls=Command, examples=EXAMPLES, context_settings={"show_default": True})
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="REPORT.json...")
@click.option(
    "--pairs", is_flag=True, help="Show bytes of all pairs of workers and all arenas, also where they are equal."
)
@click.option("--tasks", is_flag=True, help="Show the tasks whose predicted and measured times differ most.")
@click.option(
    "--profile", "profiles", multiple=True, type=click.Path(path_type=Path), metavar="FILE", help=PROFILE_HELP
)
@click.option("--steps", type=click.IntRange(1), help="Steps in a profile.  [default: the number it marks, or 1]")
@click.pass_context
def main(  # noqa: PLR0913, PLR0917 -- click passes options by name
    context: click.Context,
    files: tuple[Path, ...],
    pairs: bool,
    tasks: bool,
    profiles: tuple[Path, ...],
    steps: int | None,
) -> None:
    """Compare reports of `simulate --json` and `execute --json`, or decisions of `decide --json`: a row for each.

    Exit status 1 if the bytes between any pair of workers differ between reports, or if an arena does not have the
    predicted size.
    """
    if profiles:
        if len(files) != 1:
            raise click.UsageError(f"--profile: expected one prediction beside it, found {len(files)} files")
        profile = mean_of([read_profile(path, steps) for path in profiles])
        stdout().print(*beside_profile(files[0], profile), sep="\n", soft_wrap=True)
        return
    are_decisions = [format_of(read_input(file)).startswith("decision/") for file in files]
    if any(are_decisions):
        if len(files) < 2 or not all(are_decisions) or pairs or tasks:
            count = f"{sum(are_decisions)} among {len(files)} files"
            raise click.UsageError(f"expected at least two decisions alone, without --pairs and --tasks, found {count}")
        stdout().print(*_decisions(files), sep="\n", soft_wrap=True)
        return
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


def _decisions(files: Sequence[Path]) -> Iterator[RenderableType]:
    """Yield a table of decisions, then how each differs from the first: its seconds by cause, and its assumptions."""
    first, *others = decisions = [load_decision(file) for file in files]
    cells = [Varied(values={"decision": str(file)}, decision=told) for file, told in zip(files, decisions, strict=True)]
    yield varied_table("decisions", cells)
    for file, other in zip(files[1:], others, strict=True):
        yield printable(f"{file} instead of {files[0]}: {difference(other.best, first.best)}")
        for says in (title, assumed):
            if says(other) != says(first):
                yield printable(f"  {says(other)}; instead of {says(first)}")
