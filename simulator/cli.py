"""The command `simulate`: what a plan would cost on a machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from planner.extensions import load_operators, operators_option
from planner.files import check_written
from planner.plans.plan_json import load_plan
from planner.program.lower import lower
from planner.report.console import command_errors, stdout
from planner.report.schema import write_reports
from planner.report.tables import byte_matrix, devices, links, summary
from simulator.report import report
from simulator.simulation import simulate
from simulator.tracing import trace
from topologies import load_topology

WRITTEN = click.Path(dir_okay=False, path_type=Path)


@command_errors
@click.command("simulate")
@click.argument("plan_path", metavar="PLAN", type=click.Path(path_type=Path))
@click.option("--topo", required=True, help="A topology file, or the name of one of the package's own.")
@click.option(
    "--prefetch", type=click.IntRange(0), default=1, show_default=True, help="Start fetches so many units early."
)
@click.option("--overlap/--no-overlap", default=True, help="Whether transfers overlap computation.")
@operators_option
@click.option("--json", "json_path", type=WRITTEN, help="Write the report.")
@click.option("--trace", "trace_path", type=WRITTEN, help="Write a trace for chrome://tracing or ui.perfetto.dev.")
def main(plan_path: Path, topo: str, **options: Any) -> None:
    """Simulate one training iteration of PLAN on a described machine."""
    json_path, trace_path = options["json_path"], options["trace_path"]
    check_written((json_path, trace_path), (plan_path,))
    load_operators(options["operator_files"])
    machine = load_topology(topo)
    plan = load_plan(plan_path)
    machine.require_devices(plan.workers)
    settings = {"prefetch": options["prefetch"], "overlap": options["overlap"]}
    program = lower(plan, prefetch=settings["prefetch"])
    simulation = simulate(program, machine, overlap=settings["overlap"], record_messages=trace_path is not None)
    result = report(plan, plan_path, simulation, settings)
    if json_path is not None:
        write_reports(json_path, result)
    if trace_path is not None:
        trace(simulation).write(trace_path)
    console = stdout()
    for table in (summary(result), devices(result), byte_matrix(result.bytes), links(result)):
        console.print(table)
