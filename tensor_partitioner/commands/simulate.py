"""The command `simulate`: predict what a plan costs on a machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from planner.failures import JobError
from planner.model_source import source_files
from planner.planning import plan as search_plan
from planner.plans.plan import Plan
from planner.plans.plan_json import load_plan
from planner.report.schema import Report, write_reports
from planner.report.tables import finding
from simulator.projection.result import Projection
from simulator.projection.stack import OURS
from simulator.report import COLLECTIVES, Settings, plan_program, report, simulation_of, trace
from tensor_partitioner import display
from tensor_partitioner.commands.console import WRITTEN, Command, command_errors, operators_option, stdout
from tensor_partitioner.commands.planning_options import (
    MACHINES,
    MODEL_HELP,
    MODELS,
    SEARCHED,
    TOPO_HELP,
    begin,
    is_saved_plan,
    plan_for_step,
    planning_options,
    refuse_others,
    with_model_options,
)
from tensor_partitioner.commands.projecting import memory_option, named, projected, show_priced, stack_of, stack_option
from tensor_partitioner.launch import launched
from topologies import load_topology

MESSAGES = ("prefetch", "overlap", "collectives", "tasks", "trace_path")
"""Options that apply only if messages are simulated."""

SIMULATING = ("source", "topo", "operator_files", "json_path", "stack", *MESSAGES)
"""Options that apply to a saved plan."""

PRICED = "memory_report"
"""The option that applies only if a framework's stack predicts the step."""

COLLECTIVES_HELP = "How exchanges run: point-to-point messages or library collectives. auto: library on GPUs with NCCL."
HELP = f"""Simulate one training iteration of a PLAN, or of the best plan of a MODEL, on a described machine.

{MODEL_HELP} Planning takes the options of the command plan; a saved plan refuses them. Exit status 1 if the workers of
a device need more than its memory."""

EXAMPLES = (
    "simulate plan.json --topo hgx-h100",
    "simulate gpt2 --workers 8 --batch 64 --topo dgx-a100 --json simulated.json",
    "simulate gpt2 --parallel dp=8,zero=3 --batch 64 --topo dgx-a100",
)


@command_errors
@with_model_options(SEARCHED)
@click.command("simulate", cls=Command, examples=EXAMPLES, context_settings={"show_default": True}, help=HELP)
@click.argument("source", metavar="PLAN|MODEL", shell_complete=MODELS)
@click.option("--topo", shell_complete=MACHINES, required=True, help=TOPO_HELP)
@click.option("--prefetch", type=click.IntRange(0), default=1, help="Start fetches this many operators early.")
@click.option("--overlap/--no-overlap", default=True, help="Overlap transfers with computation.")
@click.option("--collectives", type=click.Choice(COLLECTIVES), default="auto", help=COLLECTIVES_HELP)
@operators_option
@click.option("--json", "json_path", type=WRITTEN, help="Write the report as JSON.")
@click.option("--tasks", is_flag=True, help="Include the time of every task in the report.")
@click.option("--trace", "trace_path", type=WRITTEN, help="Write a trace for ui.perfetto.dev or chrome://tracing.")
@stack_option
@memory_option
@planning_options
@click.pass_context
def main(context: click.Context, /, source: str, **options: Any) -> None:
    """Run the command. `HELP` describes it."""
    source, options, stack, result = predicted(context, source, **options)
    if isinstance(result, Projection):
        show_priced(source, options, stack, result)
        return
    console = stdout()
    console.print(*display.tables(result), sep="\n")
    console.print(finding(result), soft_wrap=True, style="bold red" if result.overfull else None)
    if result.overfull:
        raise JobError(f"{source}: out of memory on {', '.join(result.overfull)}")


def predicted(
    context: click.Context, /, source: str, **options: Any
) -> tuple[str, dict[str, Any], str, Report | Projection]:
    """Predict a step, and write the files that the options name.

    Return the model and the options, completed by a launch file's values, the stack, and the step.
    """
    read = (source,) if Path(source).is_file() else source_files(source)
    begin(options, ("output", "json_path", "trace_path"), read)
    if is_saved_plan(source):
        reason = f"{source} is a saved plan, which is not searched again"
        refuse_others(context, reason, allowed=(*SIMULATING, PRICED))
    source, options = launched(source, options, is_fixed=True)
    options = named(options)
    stack = stack_of(source, options)
    _check_stack(context, stack)
    return source, options, stack, _simulated(source, options) if stack == OURS else projected(source, options, stack)


def _check_stack(context: click.Context, stack: str) -> None:
    """Raise a UsageError for options that do not apply to the stack."""
    without = (PRICED,) if stack == OURS else MESSAGES
    remedy = "a framework's --stack" if stack == OURS else f"--stack {OURS}"
    for parameter in context.command.params:
        name, flag = parameter.name or "", parameter.opts[-1]
        if name in without and context.get_parameter_source(name) == ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{flag}: expected {remedy} with it, found the stack {stack}")


def _simulated(source: str, options: Mapping[str, Any]) -> Report:
    """Simulate a plan message by message, and write the files that the options name.

    For a trace, every worker is simulated by itself.
    """
    machine, plan = load_topology(options["topo"]), _plan(source, options)
    settings = Settings(**{field.name: options[field.name] for field in fields(Settings)})
    program = plan_program(plan, machine, settings.prefetch)
    if options["output"]:
        plan.save(options["output"])
    simulation = simulation_of(program, settings, each_worker=options["trace_path"] is not None)
    saved = source if is_saved_plan(source) else options["output"]
    name = source if saved is None else Path(saved).name
    result = report(plan, name, simulation, settings.told(machine), tasks=options["tasks"])
    if options["json_path"] is not None:
        write_reports(options["json_path"], result)
    if options["trace_path"] is not None:
        trace(simulation).write(options["trace_path"])
    return result


def _plan(source: str, options: Mapping[str, Any]) -> Plan:
    """Load the plan, or search it. With --objective time or --memory, the search is for the simulated machine."""
    if is_saved_plan(source):
        saved = load_plan(source)
        return saved if options["parallel"] is None else search_plan(saved.graph, parallel=options["parallel"])
    return plan_for_step(source, options)
