"""One all-reduce as the simulator sees it: every worker has a row of a matrix, and all get the sum of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from planner.graph import GraphBuilder
from planner.layout import REPLICATE, Layout, Shard, Ways
from planner.plans.plan import Plan
from planner.program.lower import lower
from simulator.interpreter import Switches, interpret
from topologies import Machine, parse_topology, reading

ITEM_BYTES = 4
MACHINE = "p4d.24xlarge"
LINK = "nvlink3-switch"


def plan(workers: int, nbytes: int) -> Plan:
    """Return a plan whose only communication is an all-reduce of so many bytes of float32."""
    builder = GraphBuilder()
    rows = builder.input("rows", (workers, nbytes // ITEM_BYTES))
    gradient = builder.state("gradient", (nbytes // ITEM_BYTES,))
    total = builder.apply("sum", rows, name="total", dims=(0,))
    replicated: Layout = (REPLICATE,)
    layouts = {rows: (Shard(0),), gradient: replicated, total: replicated}
    return Plan(builder.finish({gradient: total}, {}), 0, Ways((workers,)), layouts, {"total": ("r0",)})


def machine(half_bandwidth_bytes: float | None = None) -> Machine:
    """Return the node, where asked with another cost of a message on its NVLinks."""
    text = (files("topologies") / "machines" / f"{MACHINE}.yaml").read_text()
    if half_bandwidth_bytes is not None:
        link = reading.link_types()[LINK]
        text += (
            f"link_types:\n  - {{name: {LINK}, bandwidth_bytes_per_s: {link.bandwidth_bytes_per_s}, direction: each,"
            f" latency_s: {link.latency_s}, half_bandwidth_bytes: {half_bandwidth_bytes}}}\n"
        )
    return parse_topology(text)


def seconds(on: Machine, workers: int, sizes: Sequence[int], *, library: bool = False) -> list[float]:
    """Return how much longer each step takes than without its all-reduce, in pairs or as one operation of a library."""
    extra_s = []
    for nbytes in sizes:
        program = lower(plan(workers, nbytes))
        alone = interpret(program, on, Switches(communicate=False)).seconds
        extra_s.append(interpret(program, on, Switches(library=library)).seconds - alone)
    return extra_s
