"""The command `simulate`: what a plan would cost on a machine."""

from __future__ import annotations

from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from planner.failures import JobError
from planner.files import write_json
from planner.model_source import source_files
from planner.report.schema import write_reports
from planner.report.tables import finding
from simulator.projection.stack import OURS
from simulator.report import COLLECTIVES
from simulator.tracing import trace
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
    planning_options,
    refuse_others,
    with_model_options,
)
from tensor_partitioner.commands.projecting import SYSTEMS, memory_option, named, show_priced, stack_of, stack_option
from tensor_partitioner.commands.simulation_request import ALSO_DATA_PARALLEL, SimulationRequest
from tensor_partitioner.commands.sweep import read_sweeps, requests, run, sweep_table
from tensor_partitioner.display.progress import progress
from tensor_partitioner.launch.options import launched
from topologies import load_topology

MESSAGES = ("prefetch", "overlap", "collectives", "tasks", "trace_path")
"""The arguments that have a meaning where messages are simulated."""

SIMULATING = ("source", "topo", "data_parallel", "operator_files", "system", "json_path", "sweep", "stack", *MESSAGES)
"""Those that have one where the plan is there already."""

PRICED = "memory_report"
"""That which has one where a framework's stack prices a step."""

ONE_PLAN = {"-o": "output", "--trace": "trace_path"}

DATA_PARALLEL_HELP = "Also simulate data parallelism, for comparison."
COLLECTIVES_HELP = "How exchanges run: point-to-point messages or library collectives. auto: library on GPUs with NCCL."
SWEEP_HELP = "Simulate once per value of an option, as in batch=8,16. Given several times: every combination."
HELP = f"""Simulate one training iteration of a PLAN, or of the best plan of a MODEL, on a described machine.

{MODEL_HELP} Planning takes the options of the command plan; a saved plan refuses them. Exit status 1 where a device's
memory does not hold what its workers need."""

EXAMPLES = (
    "simulate plan.json --topo hgx-h100",
    "simulate gpt2 --workers 8 --batch 64 --topo dgx-a100 --json simulated.json",
    "simulate gpt2 --topo dgx-a100 --parallel dp=8,zero=3 --sweep batch=8,16,32",
)


@command_errors
@with_model_options(SEARCHED)
@click.command("simulate", cls=Command, examples=EXAMPLES, context_settings={"show_default": True}, help=HELP)
@click.argument("source", metavar="PLAN|MODEL", shell_complete=MODELS)
@click.option("--topo", shell_complete=MACHINES, help=TOPO_HELP)
@click.option("--prefetch", type=click.IntRange(0), default=1, help="Operators ahead of which fetches start.")
@click.option("--overlap/--no-overlap", default=True, help="Overlap transfers with computation.")
@click.option("--collectives", type=click.Choice(COLLECTIVES), default="auto", help=COLLECTIVES_HELP)
@click.option("--system", type=click.Choice([*SYSTEMS]), help="Parallelism over all devices, by name.")
@click.option("--data-parallel/--no-data-parallel", default=True, help=DATA_PARALLEL_HELP)
@operators_option
@click.option("--json", "json_path", type=WRITTEN, help="Write the report as JSON.")
@click.option("--tasks", is_flag=True, help="Include the time of every task in the report.")
@click.option("--trace", "trace_path", type=WRITTEN, help="Write a trace for ui.perfetto.dev or chrome://tracing.")
@click.option("--sweep", multiple=True, metavar="NAME=V1,V2,...", callback=read_sweeps, help=SWEEP_HELP)
@stack_option
@memory_option
@planning_options
@click.pass_context
def main(context: click.Context, /, source: str, **options: Any) -> None:
    """Run the command; `HELP` says what it does."""
    read = (source,) if Path(source).is_file() else source_files(source)
    begin(options, ("output", "json_path", "trace_path"), read)
    swept = options.pop("sweep")
    if is_saved_plan(source):
        reason = f"{source} is a saved plan, which is not searched again"
        refuse_others(context, reason, allowed=(*SIMULATING, PRICED))
    if options["topo"] is None and "topo" not in dict(swept):
        raise click.UsageError("Missing option '--topo'.")
    if swept:
        _sweep(context, source, options)
        return
    source, options = launched(source, options, is_fixed=True)
    options = named(source, options)
    stack = stack_of(source, options)
    _check_stack(context, stack, ())
    if stack == OURS:
        _once(source, options)
    else:
        show_priced(source, options, stack)


def _note(text: str) -> None:
    click.echo(f"note: {text}", err=True)


def _check_stack(context: click.Context, stack: str, swept: Container[str]) -> None:
    """Refuse options, given or swept, that have no meaning with a stack."""
    without = (PRICED,) if stack == OURS else MESSAGES
    remedy = "a framework's --stack" if stack == OURS else f"--stack {OURS}"
    if told := [flag for name, flag in _given(context, swept) if name in without]:
        raise click.UsageError(f"{told[0]}: expected {remedy} with it, found the stack {stack}")


def _given(context: click.Context, swept: Container[str]) -> Iterator[tuple[str, str]]:
    """Yield the name and the flag of every option that is given, once or to be swept."""
    for parameter in context.command.params:
        name, flag = parameter.name or "", parameter.opts[-1]
        if flag.lstrip("-") in swept or context.get_parameter_source(name) == ParameterSource.COMMANDLINE:
            yield name, flag


def _once(source: str, options: dict[str, Any]) -> None:
    trace_path = options["trace_path"]
    simulation, result = SimulationRequest(source, options, trace_path is not None).run(_note)
    if options["json_path"] is not None:
        write_reports(options["json_path"], result)
    if trace_path is not None:
        trace(simulation).write(trace_path)
    console = stdout()
    console.print(*display.tables(result), sep="\n")
    console.print(finding(result), soft_wrap=True, style="bold red" if result.overfull else None)
    if result.overfull:
        raise JobError(f"{source}: out of memory on {', '.join(result.overfull)}")


def _sweep(context: click.Context, source: str, options: dict[str, Any]) -> None:
    if context.params[PRICED]:
        raise click.UsageError("--sweep shows a line for each step: expected no --memory-report")
    if unmet := [flag for flag, name in ONE_PLAN.items() if options[name] is not None]:
        raise click.UsageError(f"--sweep makes many plans: expected no {', '.join(unmet)}, which is of one")
    cells = list(requests(context, SIMULATING if is_saved_plan(source) else None))
    for topo in dict.fromkeys(str(request.options["topo"]) for _, request in cells):
        load_topology(topo)  # what is wrong in a machine, or doubtful, is said once and before the rest
    asked = [named(source, request.options) for _, request in cells]
    stacks = [stack_of(source, options) for options in asked]
    if len(several := dict.fromkeys(stacks)) > 1:
        raise click.UsageError(f"--sweep: expected one stack for all, found {', '.join(several)}: give --stack {OURS}")
    for stack in several:
        _check_stack(context, stack, [name for name, _ in context.params["sweep"]])
    if any(options["data_parallel"] and stack == OURS for options, stack in zip(asked, stacks, strict=True)):
        _note(ALSO_DATA_PARALLEL)
    with progress("simulating", len(cells)) as done:
        sweep = run(cells, options["operator_files"], done)
    if options["json_path"] is not None:
        write_json(options["json_path"], sweep)
    stdout().print(sweep_table(sweep, f"simulated: {source}"))
    if failed := sum(not cell.is_fine for cell in sweep.cells):
        raise JobError(f"{source}: {failed} of {len(cells)} simulations failed or do not fit in memory")
