"""The command `simulate`: what a plan would cost on a machine."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import click

import display
from planner.extensions import load_operators, operators_option
from planner.files import check_written
from planner.plans.plan_json import load_plan
from planner.report.console import JobError, collect_seldom, command_errors, stdout
from planner.report.schema import write_reports
from simulator.memory import ALLOCATORS
from simulator.report import Settings, report, simulation_of
from simulator.tracing import trace
from topologies import available

WRITTEN = click.Path(dir_okay=False, path_type=Path)


@command_errors
@click.command("simulate", context_settings={"show_default": True})
@click.argument("plan_path", metavar="PLAN", type=click.Path(path_type=Path))
@click.option("--topo", required=True, help=f"A topology file, or one of {', '.join(available())}.")
@click.option("--prefetch", type=click.IntRange(0), default=1, help="Start fetches so many units early.")
@click.option("--overlap/--no-overlap", default=True, help="Whether transfers overlap computation.")
@click.option(
    "--allocator",
    type=click.Choice(ALLOCATORS),
    default=ALLOCATORS[0],
    help="What memory comes from: the arena that the executor allocates, or an allocator like PyTorch's.",
)
@operators_option
@click.option("--json", "json_path", type=WRITTEN, help="Write the report.")
@click.option("--trace", "trace_path", type=WRITTEN, help="Write a trace for chrome://tracing or ui.perfetto.dev.")
def main(plan_path: Path, topo: str, **options: Any) -> None:
    """Simulate one training iteration of PLAN on a described machine.

    Exit status 1 where a device's memory does not hold what its workers need.
    """
    collect_seldom()
    json_path, trace_path = options["json_path"], options["trace_path"]
    check_written((json_path, trace_path), (plan_path,))
    load_operators(options["operator_files"])
    plan, settings = load_plan(plan_path), Settings(**{one.name: options[one.name] for one in fields(Settings)})
    simulation = simulation_of(plan, topo, settings, record_messages=trace_path is not None)
    result = report(plan, plan_path.name, simulation, asdict(settings))
    if json_path is not None:
        write_reports(json_path, result)
    if trace_path is not None:
        trace(simulation).write(trace_path)
    stdout().print(*display.tables(result), sep="\n")
    if simulation.overfull:
        raise JobError(f"{plan_path}: out of memory on {', '.join(simulation.overfull)}")
