"""The command `export-plan`: write a plan, or named parallelism, for another engine."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from functools import singledispatch
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from planner.errors import PlanError
from planner.export.exported import export
from planner.export.setup import DEVICES_PER_NODE, Launch, Setup, parallel_of
from planner.export.targets import Target, TraceFormat, engines_of, listed_targets, target_named, target_names
from planner.files import format_of, read_input, write_file, write_json
from planner.model_source import model as load_model, source_files
from planner.models.zoo import MIXED_FLOAT8, buildable
from planner.parallel import Parallel
from planner.plans.plan import Plan
from planner.plans.plan_json import load_plan
from planner.program.lower import lower
from tensor_partitioner import display
from tensor_partitioner.commands.console import WRITTEN, Command, command_errors, operators_option, stdout
from tensor_partitioner.commands.planning_options import (
    DECIDED,
    MACHINES,
    MODEL_HELP,
    MODELS,
    begin,
    is_saved_plan,
    plan_model,
    planning_options,
    refuse_others,
    training_options,
    with_model_options,
)
from tensor_partitioner.decision.sources import typed
from tensor_partitioner.display import exact_bytes, facts
from topologies import load_topology

TO_HELP = f"Target: {listed_targets()}, or one that --operators registers."
TOPO_HELP = f"Machine to take the devices per node from.  [default: {DEVICES_PER_NODE} devices per node]"
WITH_PLAN = ("source", "to", "topo", "output", "json_file", "operator_files")
DECISIONS = "tensor_partitioner.decision.record"
HELP = f"""Write a PLAN, the best of a DECISION (decide --json), or a MODEL with --parallel, for another engine: launch
lines, configurations, code or traces.

Engines that are configured by degrees of parallelism (megatron, torchtitan, deepspeed, fsdp2) take plans of named
parallelism only; torchrun, dtensor, jax and traces take any plan. What an engine cannot run is refused with a reason.

{MODEL_HELP}"""
EXAMPLES = (
    "export-plan gpt2 --parallel tp=2,dp=4 --batch 64 --to megatron -o gpt2.sh",
    "export-plan decision.json --to fsdp2 -o split.py",
    "export-plan plan.json --to dtensor -o placed.py",
)


def _targets(_context: click.Context, _option: click.Parameter, begin: str) -> list[str]:
    return [name for name in target_names() if name.startswith(begin)]


@command_errors
@with_model_options(DECIDED)
@click.command("export-plan", cls=Command, examples=EXAMPLES, context_settings={"show_default": True}, help=HELP)
@click.argument("source", metavar="PLAN|DECISION|MODEL", shell_complete=MODELS)
@click.option("--to", required=True, metavar="NAME", help=TO_HELP, shell_complete=_targets)
@click.option("--topo", shell_complete=MACHINES, help=TOPO_HELP)
@operators_option
@click.option("--json", "json_file", type=WRITTEN, help="Write the tables and the notes as JSON.")
@planning_options
@click.pass_context
def main(context: click.Context, /, source: str, **options: Any) -> None:
    """Run the command. `HELP` describes it."""
    read = (source,) if Path(source).is_file() else source_files(source)
    begin(options, ("output", "json_file"), read)
    target = target_named(options["to"])
    if Path(source).is_file() and format_of(read_input(Path(source))).startswith("decision/"):
        refuse_others(context, f"{source} is a decision, which fixes these options", allowed=WITH_PLAN)
        source, options = _of_decision(context, source, options)
    elif is_saved_plan(source):
        refuse_others(context, f"{source} is a saved plan, which is not searched again", allowed=WITH_PLAN)
    elif options["parallel"] is None:
        raise click.UsageError(f"{source}: expected a plan, a decision, or a model with --parallel, as in tp=2,dp=4")
    record = write_for(target, source, options)
    if options["json_file"] is not None:
        write_json(options["json_file"], record)


def _of_decision(context: click.Context, source: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the model of a decision and the options of its best candidate, combined with those given.

    Raises PlanError if the model is a Python file that the user did not name: reading a decision runs no code.
    """
    words, per_node = import_module(DECISIONS).best_of(Path(source))
    decided = context.command.make_context(context.info_name, [*words, "--to", options["to"]]).params
    named = {*map(os.path.realpath, options["operator_files"])}
    for file in source_files(decided["source"]):
        if file.suffix == ".py" and os.path.realpath(file) not in named:
            raise PlanError(f"{source}: its model is in {file}, which is run only with --operators {file}")
    given = {name: options[name] for name in WITH_PLAN if name != "source"}
    return decided["source"], {**decided, **given, "pins_file": None, "per_node": per_node}


@singledispatch
def write_for(target: Target | Launch | TraceFormat, source: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Write a plan or model for a target, to the file that the options name. Print notes; return the JSON record."""
    raise TypeError(f"expected a target, found {type(target).__name__}")


@write_for.register
def _launch(target: Launch, source: str, options: Mapping[str, Any]) -> dict[str, Any]:
    output: Path | None = options["output"]
    setup = _setup(source, options, any_plan=target.any_plan)
    if target.cannot(setup):
        able = ", ".join(name for name, why in engines_of(setup).items() if not why)
        raise PlanError(f"{target.refusal(setup)}; {able or 'no engine'} can")
    text = target.write(setup, output.stem if output else "plan")
    notes = target.notes(setup)
    for note in notes:
        click.echo(f"note: {display.printable(note)}", err=True)
    if output is None:
        click.echo(text, nl=False)
    else:
        write_file(output, text)
    return {"target": target.title, "parallel": str(setup.parallel), "notes": notes}


@write_for.register
def _placements(target: Target, source: str, options: Mapping[str, Any]) -> dict[str, Any]:
    output: Path | None = options["output"]
    exported = export(_plan(source, options), options["to"])
    stdout().print(*display.tables(exported), sep="\n")
    if output is not None:
        write_file(output, exported.source(output.stem))
    return exported.to_data()


@write_for.register
def _traces(target: TraceFormat, source: str, options: Mapping[str, Any]) -> dict[str, Any]:
    if options["output"] is None:
        raise click.UsageError(f"{target.title}: expected -o FILE, from which the files of the workers get their names")
    plan = _plan(source, options)
    files = target.write(lower(plan), options["output"])
    moved = ("bytes", f"{exact_bytes(plan.total_bytes)}, equal to the plan's for every pair of workers")
    stdout().print(facts(f"{target.title}: {files[0].name} to {files[-1].name}", [moved]))
    return {"target": target.title, "files": [file.name for file in files], "bytes": plan.total_bytes}


def _setup(source: str, options: Mapping[str, Any], *, any_plan: bool) -> Setup:
    """Return the training setup that an engine is configured with. Nothing is searched."""
    nodes = options.get("per_node", DEVICES_PER_NODE)
    if options["topo"] is not None:
        machine = load_topology(options["topo"])
        nodes = max(map(len, machine.nodes_of(range(len(machine.devices))).values()))
    if is_saved_plan(source):
        plan = load_plan(source)
        parallel = Parallel() if any_plan else parallel_of(plan)
        return Setup(plan.graph, parallel, nodes, saved=source, workers=plan.workers, name=plan.search.model)
    given, parallel = training_options(source, options), options["parallel"]
    graph = load_model(source, opaque_unknown=options["opaque_unknown"], **buildable(given.items()))
    float8 = given.get("dtype") == MIXED_FLOAT8
    command = (source, *shlex.split(" ".join(typed(given.items()))), "--parallel", str(parallel))
    return Setup(graph, parallel, nodes, command=command, float8=float8)


def _plan(source: str, options: Mapping[str, Any]) -> Plan:
    return load_plan(source) if is_saved_plan(source) else plan_model(source, {**options, "output": None}, None)
