"""What is to be trained: a model's source, as a decision is asked for it, and the degrees that are fixed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import planner
from planner.errors import GraphError, PlanError
from planner.graph.ir import Graph
from planner.models.trained import trained_as
from planner.models.zoo import is_zoo_name
from planner.parallel import Parallel
from planner.plans.plan import Plan
from planner.search.pins import Degree, read_pins
from tensor_partitioner.replicas import GraphModel, Source, ZooModel
from topologies import Machine

SWITCH = {"on": True, "off": False}
"""What a pin of `sp` says."""


def degrees_of(pins: Sequence[str]) -> tuple[Degree, ...]:
    """Read pins of words of named parallelism; a PlanError for others."""
    expected = "expected a word of --parallel, as in tp=4 or zero=1; plan --workers K takes pins of tensors"
    degrees, switches = [], []
    for text in pins:
        if isinstance(text, str) and "=" not in text:
            raise PlanError(f"pin {text!r}: {expected}")
        word, _, value = str(text).partition("=")
        if word.strip() == "sp":
            if value.strip() not in SWITCH:
                raise PlanError(f"pin {text!r}: expected sp=on or sp=off")
            switches.append(Degree("sp", SWITCH[value.strip()]))
    if len(set(switches)) > 1:
        raise PlanError("pin 'sp=on' and pin 'sp=off' collide: expected one of them")
    for pin in read_pins([text for text in pins if str(text).partition("=")[0].strip() != "sp"]):
        if not isinstance(pin, Degree):
            raise PlanError(f"{pin}: {expected}")
        degrees.append(pin)
    return (*degrees, *switches[:1])


def source_of(
    model: str | Graph, machine: Machine | None, batch: int | None, options: Mapping[str, object]
) -> tuple[Source, int | None]:
    """Return where replicas come from, and how many samples a step has."""
    if isinstance(model, str) and is_zoo_name(model):
        if "micro_batches" in options:
            raise GraphError(
                f"{model}: expected no micro-batches, which are decided, found {options['micro_batches']}; "
                "pins fix the samples of one, as in micro-batch=4"
            )
        return ZooModel.of(model, trained_as(model, machine, options)), batch
    if isinstance(model, str):
        made_with = {**options, **({} if batch is None else {"batch": batch})}
        source = GraphModel(planner.model(model, **made_with), options=tuple(sorted(made_with.items())), is_made=True)
    else:
        source = GraphModel(model)
    samples = source.samples * source.graph.micro_batches
    if batch is not None and batch != samples:
        raise GraphError(f"{source.name}: expected the batch of its graph, {samples}, found {batch}")
    return source, samples


def plan_named(source: Source, batch: int, parallel: Parallel) -> Plan:
    """Plan a step of a batch as named parallelism says; GraphError and PlanError where it cannot be."""
    graph = source.whole(batch, parallel)
    return planner.plan(graph, 1) if parallel.workers == 1 else planner.plan(graph, parallel=parallel)
