"""The command `decide`: find the fastest way to train a model on a machine that fits in its memory."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from msgspec import structs

from planner.errors import GraphError, PlanError
from planner.export.targets import engine_named, engines
from planner.failures import JobError
from planner.files import write_json
from planner.graph.order import in_structural_order
from planner.model_source import source_files
from planner.models.zoo import OPTIMIZER
from planner.parallel import Parallel
from planner.plans.check import check_plan, check_search
from planner.plans.plan import Plan
from planner.search.pins import DEGREES, load_pins
from simulator.projection.network import cluster
from simulator.projection.stack import OURS, STACKS
from tensor_partitioner import display
from tensor_partitioner.commands.console import WRITTEN, Command, command_errors, operators_option, stdout
from tensor_partitioner.commands.planning_options import (
    DECIDED,
    MACHINES,
    MODEL_HELP,
    MODELS,
    TOPO_HELP,
    begin,
    given_options,
    refuse_float8,
    with_model_options,
)
from tensor_partitioner.commands.projecting import StackType, saved_for
from tensor_partitioner.decision.answer import Answer
from tensor_partitioner.decision.deciding import BUDGET_S, decide
from tensor_partitioner.decision.record import Decision
from tensor_partitioner.decision.sources import STACK, hint, is_alike, plan_named, source_of
from tensor_partitioner.decision.varied import Varied, decide_combinations, read_varied, varied_table
from tensor_partitioner.display import progress
from tensor_partitioner.launch import launched
from tensor_partitioner.plan_search import PlanSearch

PIN_HELP = f"Fix a part of --parallel ({', '.join(DEGREES)}, sp), as in tp=4. Repeatable."
PINS_HELP = "Read pins from a YAML file: `pins: {tp: 4}`."
SHOWN_DEVICES = 16
"""Largest number of devices for which the page shows the best plan tensor by tensor."""

STACK_HELP = (
    f"Software stack to predict: {', '.join(STACKS)}, or {OURS} (this project's executor, simulated worker by worker)."
    f"  [default: {STACK}, or that of a launch file]"
)
ENGINE_HELP = f"Consider only strategies that this engine runs, priced by its stack: {OURS}, {', '.join(engines())}."
VARY_HELP = (
    "Decide for each value, as in batch=64,128, sequence=8k,32k, nodes=8,16, device=h100,h200, nic=200G,400G or "
    "topo=MACHINE,MACHINE; values that contain commas are separated by semicolons: "
    "'stack=megatron;megatron,overlaps-gradients=no'. Repeatable: every combination."
)
PRICE_HELP = "With --vary: price in dollars per device-hour, for one device type or all."
MEASURED_HELP = (
    "A measured step of this model and batch, to correct predictions: 'dp=64,tp=2,micro-batch=1 = 4.97 s', "
    "'dp=8 = 6k tok/s'."
)
OF_ONE = {"-o": "output", "--page": "page_path", "--measured": "measured"}
MOST_DOLLARS = 1e6
BATCH = "the largest that fits with memory to spare, without accumulation, up to 4096 per device"
SEARCHED = {
    "micro_batches": "decided by the search, see --pin micro-batch=; 1 for a file.py:function",
    "recompute": "decided by the search, see --pin recompute=; none for a file.py:function",
}
HELP = f"""Find the way to train MODEL on all devices of a machine that is predicted fastest and fits in memory.

Searches data parallelism, ZeRO 1 to 3 (FSDP), tensor, sequence, context, expert and pipeline parallelism, their
combinations, micro-batches, schedules and activation checkpointing. {MODEL_HELP} Models of the zoo and modules without
an optimizer are trained with {OPTIMIZER} in mixed precision by default. The exit status is 1 if nothing fits."""
EXAMPLES = (
    "decide gpt2 --topo hgx-h100 --batch 64",
    "decide llama-3.1-8b --topo hgx-h100-nodes-8 --batch 512 --json decision.json",
    "decide llama-3.1-8b --topo hgx-h100-nodes-8 --vary nodes=4,8,16 --price-per-hour 2.5",
    "decide model.py:make --topo p4d.24xlarge -o plan.json --page page.html",
)
_SECONDS = re.compile(r"(\d+(?:\.\d+)?) ?(s|min)?")


def _budget(_context: click.Context, _option: click.Parameter, value: str) -> float:
    match = _SECONDS.fullmatch(value.strip())
    if match is None or not float(match[1]):
        raise click.BadParameter(f"expected a time above 0, as in 30s or 2min, found {value!r}")
    return float(match[1]) * (60 if match[2] == "min" else 1)


@command_errors
@with_model_options({**DECIDED, **SEARCHED, "batch": BATCH})
@click.command("decide", cls=Command, examples=EXAMPLES, context_settings={"show_default": True}, help=HELP)
@click.argument("source", metavar="MODEL", shell_complete=MODELS)
@click.option("--topo", required=True, shell_complete=MACHINES, help=TOPO_HELP)
@click.option("--stack", type=StackType(OURS), metavar=StackType.name, help=STACK_HELP)
@click.option("--engine", metavar="NAME", help=ENGINE_HELP)
@click.option("--budget", default=f"{BUDGET_S:g}s", callback=_budget, metavar="TIME", help="Time limit of the search.")
@click.option("--pin", "pins", multiple=True, metavar="WORD=VALUE", help=PIN_HELP)
@click.option("--pins", "pins_file", type=click.Path(path_type=Path), metavar="FILE", help=PINS_HELP)
@click.option("--all", "show_all", is_flag=True, help="Show all candidates that were priced.")
@click.option("--vary", multiple=True, metavar="NAME=V1,V2,...", help=VARY_HELP)
@click.option("--price-per-hour", "prices", multiple=True, metavar="[DEVICE=]DOLLARS", help=PRICE_HELP)
@click.option("--measured", metavar="PARALLEL=PACE", help=MEASURED_HELP)
@operators_option
@click.option("-o", "output", type=WRITTEN, help="Write the best plan.")
@click.option("--json", "json_path", type=WRITTEN, help="Write the decision, with all candidates, as JSON.")
@click.option("--page", "page_path", type=WRITTEN, help="Write the decision as one HTML file; needs the extra `page`.")
@click.pass_context
def main(context: click.Context, /, source: str, **options: Any) -> None:
    """Run the command. `HELP` describes it."""
    if options["vary"]:
        cells = varied(context, source, **options)
        stdout().print(varied_table(f"{source} on {options['topo']}", cells))
        if bad := sum(cell.decision is None or not cell.decision.best.fits for cell in cells):
            raise JobError(f"{source}: {bad} of {len(cells)} combinations failed or do not fit")
        return
    decision = decided(context, source, **options)
    stdout().print(Answer(decision, options["show_all"]))
    if advice := hint(decision.model.dtype, cluster(options["topo"]).built.devices[0]):
        stdout().print(advice, soft_wrap=True)
    if not decision.best.fits:
        raise JobError(f"{source}: nothing fits in the memory of {decision.machine.name}")


def decided(_context: click.Context, /, source: str, **options: Any) -> Decision:
    """Decide, and write the files that the options name."""
    source, options = _begin(source, options)
    if options["prices"]:
        raise click.UsageError("--price-per-hour: expected --vary with it, found none")
    decision = structs.replace(_decided(source, options), not_priced=options.get("not_priced", ()))
    if options["json_path"] is not None:
        write_json(options["json_path"], decision)
    if options["page_path"] is not None:
        _write_page(decision, source, options)
    if options["output"] is not None and decision.best.fits:
        saved_for(plan_of(decision, source, options), decision.stack).save(options["output"])
    return decision


def _begin(source: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Check the options, and return the model of a launch file with the options completed by its values."""
    begin(options, ("output", "json_path", "page_path"), source_files(source) if isinstance(source, str) else ())
    if options["page_path"] is not None and not is_alike(cluster(options["topo"])):
        raise click.UsageError(f"--page: expected a machine of equal devices, found {options['topo']}")
    source, options = launched(source, options, is_fixed=False)
    if options["engine"] is not None:
        options["stack"] = options["stack"] or engine_named(options["engine"]).stack
    if options["output"] is not None:
        refuse_float8(options)
    return source, options


def _write_page(decision: Decision, source: str, options: Mapping[str, Any]) -> None:
    """Write the page. If the best candidate fits and has few devices, the page includes its plan.

    If the user's function makes no such graph, print a note.
    """
    page, machine = import_module("tensor_partitioner.page"), options["topo"]
    plan = None
    if decision.best.fits and decision.machine.devices <= SHOWN_DEVICES:
        try:
            plan = plan_of(decision, source, options)
        except (GraphError, PlanError) as error:
            reason = display.printable(str(error))
            click.echo(f"note: the page does not show the plan tensor by tensor: {reason}", err=True)
    page.write(page.decision_content(decision, machine=machine, plan=plan), options["page_path"])


def varied(_context: click.Context, /, source: str, **options: Any) -> tuple[Varied, ...]:
    """Decide for every combination of the values to vary."""
    source, options = _begin(source, options)
    if unmet := [flag for flag, name in OF_ONE.items() if options[name] is not None]:
        raise click.UsageError(f"--vary cannot be combined with {', '.join(unmet)}")
    values, prices = read_varied(options["vary"]), dict(map(_priced, options["prices"]))
    with progress("deciding", math.prod(map(len, values.values()))) as done:
        settings = {"budget_s": options["budget"], **{name: options[name] for name in ("engine", "stack", "pins")}}
        given = {name: value for name, value in (settings | given_options(options)).items() if name not in values}
        cells = decide_combinations(source, options["topo"], values, prices, done, **given)
    if options["json_path"] is not None:
        write_json(options["json_path"], {"format": "varied/1", "cells": cells})
    return cells


def _priced(text: str) -> tuple[str, float]:
    device, _, price = text.rpartition("=")
    try:
        value = float(price)
    except ValueError:
        value = -1.0
    if not 0 < value < MOST_DOLLARS:
        raise click.BadParameter(f"--price-per-hour: expected dollars, as in h100=2.5, found {text!r}")
    return device, value


def _decided(source: str, options: Mapping[str, Any]) -> Decision:
    given = given_options(options)
    batch = given.pop("batch", None)
    pins, forbids = ((), ()) if options.get("pins_file") is None else load_pins(options["pins_file"])
    if forbids:
        raise click.UsageError(f"--pins {options['pins_file']}: decide has no forbidden placements, found {forbids[0]}")
    return decide(
        source, options["topo"], batch=batch, engine=options.get("engine"), stack=options["stack"],
        budget_s=options["budget"], pins=(*(pin.asked for pin in pins), *options["pins"]),
        measured=options.get("measured"), **given,
    )  # fmt: skip


def planned_for_time(source: str, options: Mapping[str, Any]) -> tuple[Plan, str]:
    """Return the plan of the fastest candidate that fits on all devices of the machine, and the verdict.

    `options["pins"]` are words such as "tp=4".
    """
    refuse_float8(options)
    decision = _decided(source, {**options, "stack": STACK, "budget": BUDGET_S})
    return saved_for(plan_of(decision, source, options), decision.stack), decision.verdict


def plan_of(decision: Decision, source: str, options: Mapping[str, Any]) -> Plan:
    """Return the plan of the best candidate.

    Raises GraphError if the user's function cannot make the graph that it needs.
    """
    best, batch, machine, given = decision.best, decision.model.batch, cluster(options["topo"]), given_options(options)
    model, _ = source_of(source, machine.built, given.pop("batch", None), given)
    parallel = Parallel.read(best.parallel)
    if parallel is not None:
        return plan_named(model, batch, parallel)
    graph = in_structural_order(model.whole(batch))
    on = machine.built if best.objective == "time" else None
    search = PlanSearch(graph, machine.devices)
    plan = search.whole(search.best(on)[0])
    check_plan(plan)
    check_search(plan)
    return plan
