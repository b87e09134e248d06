"""What is to be trained: a model's source, as a decision is asked for it, and the degrees that are fixed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import planner
from planner.errors import GraphError, PlanError
from planner.graph.ir import Graph
from planner.models.zoo import is_zoo_name, option_names
from planner.search.pins import Degree, read_pins
from simulator.projection.cluster import Cluster
from tensor_partitioner.replicas import GraphModel, Source, ZooModel

OPTIMIZER = "adamw"
PRECISIONS = (("bfloat16", "mixed"), ("float16", "mixed-float16"))
"""What a model of the zoo is trained with where nothing else is said, and in which precision: as the device has it."""

HALF_EPS = 1e-4
"""Adam's in half precision, where less is nothing."""


def degrees_of(pins: Sequence[str]) -> tuple[Degree, ...]:
    """Read pins of degrees; a PlanError for others."""
    degrees = []
    for pin in read_pins(list(pins)):
        if not isinstance(pin, Degree):
            raise PlanError(f"{pin}: expected a degree of parallelism, as in tp=4; plan takes pins of tensors")
        degrees.append(pin)
    return tuple(degrees)


def trained_as(model: str, machine: Cluster) -> dict[str, object]:
    """Return the options of a zoo's model that hold where nothing else is said; none for other models."""
    if not is_zoo_name(model):
        return {}
    specs = [device.spec for device in machine.built.devices]
    rates = [spec.peak_flop_per_s.by_dtype() if spec.measured is None else {} for spec in specs]
    precision = next((name for dtype, name in PRECISIONS if all(dtype in of for of in rates)), "float32")
    defaults: dict[str, object] = {"dtype": precision, "optimizer": OPTIMIZER}
    if precision == "mixed-float16":
        defaults["eps"] = HALF_EPS
    return {name: value for name, value in defaults.items() if name in option_names(model)}


def source_of(
    model: str | Graph, machine: Cluster, batch: int | None, options: Mapping[str, object]
) -> tuple[Source, int | None]:
    """Return where replicas come from, and how many samples a step has."""
    if isinstance(model, str) and is_zoo_name(model):
        return ZooModel.of(model, {**trained_as(model, machine), **options}), batch
    if isinstance(model, str):
        graph = planner.model(model, **options, **({} if batch is None else {"batch": batch}))
    else:
        graph = model
    source = GraphModel(graph)
    if batch is not None and batch != source.samples:
        raise GraphError(f"{source.name}: expected the batch of its graph, {source.samples}, found {batch}")
    return source, source.samples
