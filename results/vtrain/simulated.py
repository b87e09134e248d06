"""One published point as a program, and its time on a node whose kernels and host are as fast as asked."""

from __future__ import annotations

from dataclasses import dataclass, replace

import planner
from planner.program.lower import lower
from planner.program.tasks import Program
from simulator.interpreter import interpret
from topologies import CATEGORIES, Machine, load_topology
from topologies.schema import Efficiency

MACHINE = "p4d.24xlarge"
MODEL = {"dtype": "mixed", "optimizer": "adam", "recompute": "segments", "heads": 16, "sequence": 1024}
VOCABULARY = 50304  # GPT-2's 50257, made a multiple of 128 as Megatron does


@dataclass(frozen=True, slots=True)
class Point:
    """A configuration that was measured."""

    gpus: int
    micro_batch: int
    micro_batches: int
    hidden: int
    layers: int


@dataclass(frozen=True, slots=True)
class Fit:
    """How many times as fast as described kernels are, and the seconds that the host takes to launch one."""

    speed: float = 1.0
    host_launch_s: float = 0.0


def program(point: Point) -> Program:
    """Plan and lower the training step, data parallel."""
    batch = point.gpus * point.micro_batch * point.micro_batches
    graph = planner.model(
        f"transformer-{point.layers}-{point.hidden}",
        batch=batch,
        micro_batches=point.micro_batches,
        vocabulary=VOCABULARY,
        **MODEL,
    )
    ways = (point.gpus,)
    return lower(planner.plan(graph, point.gpus, ways=ways, searcher="data-parallel", placements="S,R"))


def machine(fit: Fit) -> Machine:
    """Return the node; kernels faster than the memory allows stand for those that a framework has fused."""
    found = load_topology(MACHINE)

    devices = tuple(
        device.changed(
            host_launch_s=fit.host_launch_s or device.spec.host_launch_s,
            efficiency=Efficiency(**{name: fit.speed * device.efficiency(name) for name in CATEGORIES}),
        )
        for device in found.devices
    )
    return replace(found, devices=devices)


def seconds(one: Program, fit: Fit) -> float:
    """Simulate an iteration."""
    return interpret(one, machine(fit)).seconds
