"""Decisions for other batches and other numbers of devices, which the sliders of a page choose from."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import product
from pathlib import Path

from msgspec.structs import replace

from planner.errors import GraphError, PlanError
from planner.graph.ir import Graph
from planner.models.zoo import is_zoo_name
from tensor_partitioner.decision.deciding import decide
from tensor_partitioner.decision.record import Decision
from tensor_partitioner.decision.sources import MOST_DEVICES
from tensor_partitioner.display.progress import tracked
from topologies import TopologyError, available

FACTORS = (0.5, 1, 2)
"""Times the batch, and times the devices, that are tried."""

NODES = (2, 4)
"""Of a machine that is a node alone, so many on a network are tried, too."""

BUDGET_S = 2.0
"""For each point; what takes longer is decided by bounds."""

_FAMILY = re.compile(r"(.+-)([1-9]\d*)")


def sweep(
    model: str | Graph,
    decision: Decision,
    machine: str | Path | None = None,
    *,
    budget_s: float = BUDGET_S,
    **options: object,
) -> tuple[Decision, ...]:
    """Decide again around a decision: for other batches where the model is the zoo's, and for more and fewer nodes.

    `machine` is as `decide` takes it (default: the decision's, by name); `options` are the model's. Points that cannot
    be are left out. Of each decision the best of every family are kept.
    """
    batches = _around(decision.model.batch) if isinstance(model, str) and is_zoo_name(model) else []
    machines = [*_machines(str(machine or decision.machine.name))]
    here = decision.machine.name, decision.model.batch
    wanted = [at for at in product(machines, batches or here[1:]) if at != here]
    points = [decision]
    for name, batch in tracked("deciding for the sliders", wanted):
        given = {} if not batches else {"batch": batch}
        try:
            point = decide(model, name, stack=decision.stack, budget_s=budget_s, **given, **options)  # type: ignore[arg-type]
        except (GraphError, PlanError, TopologyError):
            continue
        points.append(point)
    return tuple(replace(point, candidates=point.of_families()) for point in points)


def _around(number: int) -> list[int]:
    """Return the number, and others around it, whole ones only."""
    return [int(number * factor) for factor in FACTORS if number * factor >= 1 and float(number * factor).is_integer()]


def _machines(name: str) -> Iterable[str]:
    """Return machines of the same family, by the number in its name, or of as many of its kind on a network."""
    numbered = _FAMILY.fullmatch(name)
    if numbered and f"{numbered[1]}K" in available():
        return [f"{numbered[1]}{count}" for count in _around(int(numbered[2])) if count <= MOST_DEVICES]
    if f"{name}-nodes-K" in available():
        return [name, *(f"{name}-nodes-{count}" for count in NODES)]
    return [name]
