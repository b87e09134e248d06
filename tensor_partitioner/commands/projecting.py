"""Predict steps under a framework's stack, as `simulate` does. One replica stands for any number of devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem
from msgspec import structs

from planner.failures import JobError
from planner.files import write_json
from planner.graph.micro_batches import adding_up_together
from planner.graph.recompute import without_recomputation
from planner.graph.repeats import FEW
from planner.models.zoo import is_zoo_name
from planner.parallel import RECOMPUTE, Parallel
from planner.plans.check import MOST_WORKERS
from planner.plans.plan import Plan
from planner.plans.plan_json import NamedPlan, load_plan, of_replica, priced_for, read_named
from planner.plans.rewriting import without_copies
from simulator.projection.network import Cluster, cluster
from simulator.projection.result import IDEAL, Projection
from simulator.projection.stack import OURS, STACKS, stack_named
from tensor_partitioner import display
from tensor_partitioner.commands.console import stdout
from tensor_partitioner.commands.planning_options import (
    given_options,
    is_saved_plan,
    plan_for_step,
    plan_model,
    refuse_float8,
)
from tensor_partitioner.decision.answer import memory_table, sent_table, shares_table, step_table
from tensor_partitioner.decision.sources import STACK, hint, is_alike, require_alike, source_of
from tensor_partitioner.projection import inner_of, project_plan, project_source
from tensor_partitioner.replicas import GraphModel, Source

FORMAT = "projection/1"
DERIVED = ("samples_per_s", "utilisation", "needed_bytes", "fits", "roof_factor")
"""Properties of a step that are written besides its fields."""

STACK_HELP = (
    f"Software stack to predict: {', '.join(STACKS)}, or {OURS} (this project's executor, simulated message by "
    f"message).  [default: that of a saved plan; {STACK} with --parallel on equal devices; otherwise {OURS}]"
)
MEMORY_HELP = f"Show memory use line by line; not with --stack {OURS}."


class StackType(click.ParamType[str]):
    """A stack's name, and fields to change: "megatron,overlaps-gradients=no". `others` are also taken as they are."""

    name = "NAME[,FIELD=VALUE...]"

    def __init__(self, *others: str) -> None:
        self._others = others

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text. Raises InputError unless it names a stack."""
        if value not in self._others:
            stack_named(value, self._others)
        return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the stacks that begin like this."""
        return [CompletionItem(name) for name in (*STACKS, *self._others) if name.startswith(incomplete)]


stack_option = click.option("--stack", type=StackType(OURS), metavar=StackType.name, help=STACK_HELP)
memory_option = click.option("--memory-report", is_flag=True, help=MEMORY_HELP)


def named(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a command's options with `--recompute` and `--micro-batches` moved into `parallel`.

    The number of micro-batches becomes their size if it divides the batch.
    """
    options, parallel, recompute = dict(options), options["parallel"], options["recompute"]
    if parallel is not None and parallel.recompute == "none" and recompute is not None:
        kind = next(name for name, spelled in RECOMPUTE.items() if spelled == recompute)
        options["parallel"] = replace(parallel, recompute=kind)
    parallel, batch, count = options["parallel"], options["batch"], options["micro_batches"]
    if parallel is None or batch is None or count is None or batch % (parallel.dp * count):
        return options
    return options | {"parallel": parallel.in_micro_batches(batch, count), "micro_batches": None}


def stack_of(source: str, options: Mapping[str, Any]) -> str:
    """Return the stack to predict a step with, for a model or a saved plan.

    It is the one the user named, or that of the saved plan. Otherwise it is PyTorch's for named parallelism on equal
    devices, and this project's for everything else.
    """
    if options["stack"] is not None:
        return str(options["stack"])
    saved = is_saved_plan(source)
    if not is_alike(cluster(options["topo"])):
        return OURS
    if saved and (recorded := priced_for(source)):
        return recorded
    is_named = options["parallel"] is not None or (saved and read_named(source) is not None)
    return STACK if is_named else OURS


def priced(source: str, options: Mapping[str, Any], stack: str) -> Projection:
    """Predict a step of a model or a saved plan under a framework's stack. Raises PlanError or TopologyError."""
    machine, parallel = cluster(options["topo"]), options["parallel"]
    require_alike(machine)
    if is_saved_plan(source):
        return _priced_plan(source, parallel, machine, stack)
    if parallel is None:
        return project_plan(plan_for_step(source, options), machine, stack)
    if options["workers"] not in {None, parallel.workers}:
        expected = f"expected the {parallel.workers} of --parallel {parallel}"
        raise click.UsageError(f"--workers: {expected}, found {options['workers']}")
    return project_source(*_job(source, options), machine, stack)


def _priced_plan(source: str, parallel: Parallel | None, machine: Cluster, stack: str) -> Projection:
    """Predict a saved plan, or its graph under another parallelism. Named parallelism is predicted from one replica."""
    saved = read_named(source)
    asked = parallel or Parallel.read(None if saved is None else saved.parallel)
    if asked is None:
        return project_plan(load_plan(source), machine, stack)
    graph = adding_up_together(without_copies(load_plan(source).graph if saved is None else saved.graph()))
    layers = () if saved is None else saved.layers
    model = GraphModel(graph if asked.recompute == "none" else without_recomputation(graph), layers)
    batch = (None if saved is None else saved.batch) or model.samples * model.graph.micro_batches
    return project_source(model, batch, asked, machine, stack)


def saved_for(plan: Plan, stack: str) -> Plan:
    """Return the plan with the stack it was predicted for."""
    return replace(plan, search=structs.replace(plan.search, stack=stack))


def plan_replica(source: str, options: Mapping[str, Any]) -> tuple[Plan, str]:
    """Plan one replica of named parallelism for very many workers. Return it with a sentence about it."""
    refuse_float8(options)
    model, batch, parallel = _job(source, options)
    inner = inner_of(model, batch, parallel)
    plan = of_replica(inner.replica.plan, str(parallel), batch, inner.layers)
    few, every = sum(min(count, FEW) for count in inner.layers), sum(inner.layers)
    layers = f", {few} of its {every} layers" if few < every else ""
    return plan, (
        f"Of {parallel.workers} workers this is the plan of {plan.workers}: one stage of one replica{layers}. The "
        "other workers do the same. simulate predicts a step of all."
    )


def projected(source: str, options: Mapping[str, Any], stack: str) -> Projection:
    """Predict a step, and write the report and the plan of a step that fits if the options name files.

    For very many workers, the plan is that of one replica.
    """
    if options["output"] is not None:
        refuse_float8(options)
    step, parallel = priced(source, options, stack), options["parallel"] or _parallel_of(source)
    if options["json_path"] is not None:
        about = {"format": FORMAT, "model": _name_of(source), "machine": str(options["topo"])}
        how = {"parallel": None if parallel is None else str(parallel), "stack": stack}
        derived = {name: getattr(step, name) for name in DERIVED}
        write_json(options["json_path"], {**about, **how, **asdict(step), **derived})
    if options["output"] is not None and step.fits:
        options, few = {**options, "batch": step.samples}, parallel is None or parallel.workers <= MOST_WORKERS
        plan = plan_model(source, options, options["topo"]) if few else plan_replica(source, options)[0]
        saved_for(plan, stack).save(options["output"])
    return step


def _name_of(source: str) -> str:
    return Path(source).name if is_saved_plan(source) else source


def show_priced(source: str, options: Mapping[str, Any], stack: str, step: Projection) -> None:
    """Print a step. Raises JobError if it does not fit in memory."""
    name, parallel = _name_of(source), options["parallel"] or _parallel_of(source)
    tables = [step_table(step), shares_table(step.shares, step.seconds)]
    tables += [sent_table(step.sent_bytes)] if step.sent_bytes else []
    tables += [memory_table(step)] if options["memory_report"] else []
    stdout().print(*tables, sep="\n")
    advice = hint(step.dtype, cluster(options["topo"]).built.devices[0])
    unpriced = f"Not priced: {', '.join(options['not_priced'])}." if options.get("not_priced") else ""
    sentence = said(name, parallel, str(options["topo"]), step, stack)
    stdout().print(*filter(None, (advice, unpriced, sentence)), sep="\n", soft_wrap=True)
    if not step.fits:
        raise JobError(
            f"{name}: out of memory by {display.quantity(-step.margin_bytes, 'B')} on {options['topo']}: a smaller "
            "micro-batch, recompute=full, zero=1 to 3 or more devices would help"
        )


def _parallel_of(source: str) -> Parallel | None:
    saved: NamedPlan | None = read_named(source) if is_saved_plan(source) else None
    return None if saved is None else Parallel.read(saved.parallel)


def _job(source: str, asked: Mapping[str, Any]) -> tuple[Source, int, Parallel]:
    """Return a command's model, the samples of a step, and its parallelism with the size of a micro-batch."""
    decided = ("micro_batches", "recompute") if is_zoo_name(source) else ()
    given = {name: value for name, value in given_options(asked).items() if name not in decided}
    machine = None if asked["topo"] is None else cluster(asked["topo"]).built
    model, batch = source_of(source, machine, given.pop("batch", None), given)
    if batch is None:
        raise click.UsageError(f"{source}: expected --batch, the samples of a step over all devices, found none")
    parallel, count = asked["parallel"], asked["micro_batches"]
    return model, batch, parallel if count is None else parallel.in_micro_batches(batch, count)


def said(source: str, parallel: Parallel | None, machine: str, step: Projection, stack: str) -> str:
    """Return one sentence that summarizes a step under a stack."""
    cause = max((c for c in step.shares if c != IDEAL), key=step.shares.__getitem__)
    how = "" if parallel is None else f" as {str(parallel) or 'dp=1'}"
    needed, there = (display.quantity(nbytes, "B") for nbytes in (step.needed_bytes, step.capacity_bytes))
    by = display.quantity(-step.margin_bytes, "B")
    fit = f"it fits, with {needed} of {there}" if step.fits else f"it does NOT fit: {needed} of {there}, {by} too much"
    return (
        f"{source} on {machine}{how}, run by {stack}, takes "
        f"{display.seconds(step.seconds)} a step, {display.number(step.samples_per_s)} "
        f"samples/s, {step.utilisation:.0%} MFU ({step.dtype}); the largest loss is {cause} "
        f"({step.shares[cause] / step.seconds:.0%}); {fit}."
    )
