"""Projecting named parallelism, as the command `simulate` does it: one replica looked at, any number of devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from planner.errors import GraphError, PlanError
from planner.failures import JobError
from planner.files import write_json
from planner.graph.few_segments import FEW
from planner.graph.micro_batches import adding_up_together
from planner.graph.recompute import without_recomputation
from planner.model_source import model as load_model
from planner.models.zoo import is_zoo_name
from planner.parallel import Parallel
from planner.plans.named import NamedPlan, of_replica, read_named
from planner.plans.plan import Plan
from planner.plans.plan_json import load_plan
from planner.report.schema import Report
from simulator.projection.cluster import Cluster, cluster
from simulator.projection.result import Projection
from simulator.projection.stack import STACKS
from tensor_partitioner import display
from tensor_partitioner.commands.console import stdout
from tensor_partitioner.commands.planning_options import is_saved_plan, training_options
from tensor_partitioner.decision.checks import is_alike, require_alike
from tensor_partitioner.decision.precision import hint
from tensor_partitioner.decision.tables import memory_table, shares_table, step_table
from tensor_partitioner.projection import inner_of, project_plan, project_source
from tensor_partitioner.replicas import GraphModel, Source, ZooModel

EXPANDED_WORKERS = 16
"""Up to so many workers `--parallel` is simulated message by message, unless it is said otherwise."""

SAVED_WORKERS = 64
"""Up to so many workers a saved plan of named parallelism is, as every other saved plan."""

FORMAT = "projection/1"
PROJECT_HELP = (
    "Project --parallel from one replica, which takes seconds whatever the number of devices, or simulate it message "
    f"by message.  [default: project from {EXPANDED_WORKERS + 1} workers on]"
)
STACK_HELP = "With --project: the software that runs it."
COMPUTING = (
    *("kernels at the roof", "kernels below the roof", "recomputation"),
    *("waiting for the host", "optimizer"),
)
"""Causes of a step's seconds that are no communication."""

MEMORY_HELP = "With --project: say line by line what fills the memory."

BELIEVED = (
    "Believe this one for training by that stack, whose kernels are fused; the simulated one for this project's own "
    "executor, which runs the plan operator by operator."
)
"""Which of two predictions holds for what."""

project_option = click.option("--project/--no-project", "project", default=None, help=PROJECT_HELP)
stack_option = click.option("--stack", default="compile", type=click.Choice([*STACKS]), help=STACK_HELP)
memory_option = click.option("--memory-report", is_flag=True, help=MEMORY_HELP)


def is_projected(options: Mapping[str, Any]) -> bool:
    """True if a model under named parallelism is to be projected."""
    parallel: Parallel | None = options["parallel"]
    if options["project"] and parallel is None:
        raise click.UsageError("--project: expected --parallel with it, as in --parallel tp=8,dp=4, found none")
    if options["memory_report"] and (parallel is None or options["project"] is False):
        raise click.UsageError("--memory-report: expected --parallel with it, projected; found neither or --no-project")
    if parallel is None or options["project"] is False:
        return False
    return bool(options["project"]) or parallel.workers > EXPANDED_WORKERS or options["memory_report"]


def project_saved(source: str, options: Mapping[str, Any]) -> bool:
    """Project a saved plan of named parallelism, if it has many workers or it is asked for; return whether it was."""
    if options["project"] is False:
        return False
    named = read_named(source)
    parallel = Parallel.read(None if named is None else named.parallel)
    if not options["project"] and (parallel is None or parallel.workers <= SAVED_WORKERS):
        return False
    _show(Path(source).name, _saved_step(source, named, options), parallel, options)
    return True


def _saved_step(source: str, named: NamedPlan | None, options: Mapping[str, Any]) -> Projection:
    """Project a saved plan, of named parallelism from one replica."""
    parallel = Parallel.read(None if named is None else named.parallel)
    if named is None or parallel is None:
        return project_plan(load_plan(source), _machine(options), options["stack"])
    graph = adding_up_together(named.graph())
    model = GraphModel(graph if parallel.recompute == "none" else without_recomputation(graph), named.layers)
    batch = named.batch or model.samples * model.graph.micro_batches
    return project_source(model, batch, parallel, _machine(options), options["stack"])


def beside(source: str, options: Mapping[str, Any], report: Report) -> str:
    """Say what `decide` predicts for what was simulated, and why that is another figure; "" where it predicts none."""
    parallel, saved = options["parallel"], is_saved_plan(source)
    total_s, exposed_s = report.seconds_per_step, report.exposed_seconds
    asked = options["project"] is None and options["system"] is None and (saved or parallel is not None)
    if not asked or total_s is None or exposed_s is None or not is_alike(cluster(options["topo"])):
        return ""
    try:
        if saved:
            step = _saved_step(source, read_named(source), options)
        else:
            job = _job(source, {**options, "batch": report.batch})
            step = project_source(*job, _machine(options), options["stack"])
    except (PlanError, GraphError) as error:
        return f"It cannot be projected as decide would: {error}"
    computing_s = sum(step.shares[cause] for cause in COMPUTING)
    kernels, waiting = (
        f"{display.seconds(ours)} (simulated: {display.seconds(theirs)})"
        for ours, theirs in (
            (computing_s, total_s - exposed_s),
            (step.seconds - computing_s, exposed_s),
        )
    )
    return (
        "What follows is simulated, as is what stands beside it. "
        f"decide predicts {display.seconds(step.seconds)}, as --project does: by the stack {options['stack']}, which "
        f"fuses what the simulator runs operator by operator, it computes for {kernels}, and waits for {waiting}, as "
        f"collectives run beside kernels and not message by message. {BELIEVED}"
    )


def plan_replica(source: str, options: Mapping[str, Any]) -> tuple[Plan, str]:
    """Plan one replica of named parallelism of very many workers, and save it; return it with what to say of it."""
    model, batch, parallel = _job(source, options)
    inner = inner_of(model, batch, parallel)
    plan = of_replica(inner.replica.plan, str(parallel), batch, inner.layers)
    if options["output"] is not None:
        plan.save(options["output"])
    few, every = sum(min(count, FEW) for count in inner.layers), sum(inner.layers)
    layers = f", {few} of its {every} layers" if few < every else ""
    return plan, (
        f"Of {parallel.workers} workers this is the plan of {plan.workers}, a stage's in one replica{layers}: the "
        "others do alike. simulate projects a step of all."
    )


def project_model(source: str, options: Mapping[str, Any]) -> None:
    """Project a model as a command's options say, show the step, and write it where they say."""
    workers, parallel = options["workers"], options["parallel"]
    if workers not in {None, parallel.workers}:
        raise click.UsageError(f"--workers: expected the {parallel.workers} of --parallel {parallel}, found {workers}")
    step = project_source(*_job(source, options), _machine(options), options["stack"])
    _show(source, step, parallel, options)


def _machine(options: Mapping[str, Any]) -> Cluster:
    machine = cluster(options["topo"])
    require_alike(machine)
    return machine


def _show(source: str, step: Projection, parallel: Parallel | None, options: Mapping[str, Any]) -> None:
    if options["json_path"] is not None:
        write_json(options["json_path"], _data(source, parallel, options, step))
    tables = [step_table(step), shares_table(step.shares, step.seconds)]
    stdout().print(*tables, *([memory_table(step)] if options["memory_report"] else []), sep="\n")
    advice = hint(step.dtype, _machine(options).built.devices[0])
    stdout().print(
        *filter(None, (advice, said(source, parallel, str(options["topo"]), step))), sep="\n", soft_wrap=True
    )
    if not step.fits:
        raise JobError(
            f"{source}: out of memory by {display.quantity(-step.margin_bytes, 'B')} on {options['topo']}: a smaller "
            "micro-batch, recompute=full, zero=1 to 3 or more devices would help"
        )


def _job(source: str, asked: Mapping[str, Any]) -> tuple[Source, int, Parallel]:
    """Return a command's model, the samples of a step, and its parallelism with the samples of a micro-batch."""
    given = training_options(source, asked, cluster(asked["topo"]).built if asked["topo"] is not None else None)
    if not is_zoo_name(source):
        model = GraphModel(load_model(source, **given))
        batch = model.samples * model.graph.micro_batches
        return model, batch, _in_micro_batches(asked, batch)
    if "batch" not in given:
        raise click.UsageError(f"{source}: expected --batch, the samples of a step over all devices, found none")
    batch = given["batch"]
    options = {name: value for name, value in given.items() if name not in ("batch", "micro_batches")}
    return ZooModel.of(source, options), batch, _in_micro_batches(asked, batch)


def _in_micro_batches(asked: Mapping[str, Any], batch: int) -> Parallel:
    parallel: Parallel = asked["parallel"]
    count = asked["micro_batches"]
    return parallel if count is None else parallel.in_micro_batches(batch, count)


def said(source: str, parallel: Parallel | None, machine: str, step: Projection) -> str:
    """Say in one sentence what a projection shows."""
    cause = max((c for c in step.shares if c != "kernels at the roof"), key=step.shares.__getitem__)
    how = ", projected" if parallel is None else f" as {parallel}, projected from one replica"
    needed, there = (display.quantity(nbytes, "B") for nbytes in (step.needed_bytes, step.capacity_bytes))
    by = display.quantity(-step.margin_bytes, "B")
    fit = f"it fits, with {needed} of {there}" if step.fits else f"it does NOT fit: {needed} of {there}, {by} too much"
    return (
        f"{source} on {machine}{how}, takes "
        f"{display.seconds(step.seconds)} a step, {display.number(step.samples_per_s)} "
        f"samples/s at {step.utilisation:.0%} of the {step.dtype} peak; most beyond the kernels' best goes to {cause} "
        f"({step.shares[cause] / step.seconds:.0%}); {fit}."
    )


def _data(source: str, parallel: Parallel | None, options: Mapping[str, Any], step: Projection) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "model": source,
        "machine": str(options["topo"]),
        "parallel": None if parallel is None else str(parallel),
        "stack": options["stack"],
        **{name: value for name, value in asdict(step).items() if name not in ("stages", "memory")},
        "memory": [asdict(line) for line in step.memory],
        "stages": [stage._asdict() for stage in step.stages],
        "samples_per_s": step.samples_per_s,
        "utilisation": step.utilisation,
        "needed_bytes": step.needed_bytes,
        "fits": step.fits,
        "roof_factor": step.roof_factor,
    }
