"""Commands that show what a decision says, as they are typed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from shlex import quote

from planner.export.setup import Setup
from planner.export.targets import engines_of
from planner.parallel import Parallel
from planner.plans.check import MOST_WORKERS
from planner.search.pins import Degree
from tensor_partitioner.decision.record import MachineFacts, RankedCandidate
from tensor_partitioner.replicas import Source, ZooModel

STACK = "compile"
"""The stack of named parallelism where nothing else is said."""

OWN_EXECUTOR = "torchrun"
ENGINES = ("fsdp2", "megatron", "torchtitan", "deepspeed")
"""Engines by how little they ask of a model: FSDP2 takes any module."""


def commands(  # noqa: PLR0913 -- what a decision was made of
    source: Source, batch: int, machine: MachineFacts, best: RankedCandidate, *, stack: str, pins: Iterable[Degree]
) -> Iterator[str]:
    """Yield what to type to see it again, to have the plan, to run it, and to have it in other engines.

    `stack` is the decision's, and `pins` are those that it was held to.
    """
    words = " ".join((quote(source.name), *_typed(_options(source, batch))))
    running = [f"mpirun -n {machine.devices} execute plan.json"] if machine.devices <= MOST_WORKERS else []
    topo = f"--topo {quote(machine.name)}"
    if best.parallel is None:
        objective = f" --objective time {topo}" if best.objective == "time" else ""
        planning = f"plan {words} --workers {machine.devices}{objective} -o plan.json"
        yield from (planning, *running, f"export-plan plan.json --to {OWN_EXECUTOR}")
        return
    named = f"{words} --parallel {best.name}"
    by = "" if stack == STACK else f" --stack {stack}"
    yield f"simulate {named} {topo}{by}"
    held = "".join(f" --pin {quote(pin.asked)}" for pin in pins)
    decided = f"decide {words} {topo}{by}{held} -o plan.json"
    yield f"plan {named} -o plan.json" if isinstance(source, ZooModel) else decided
    yield from running
    for engine in _engines(source, batch, best.parallel):
        yield f"export-plan {named} --to {engine}"


def _engines(source: Source, batch: int, parallel: str) -> Iterator[str]:
    """Yield the first engine that can run it, of those that are told degrees, and this project's own executor."""
    refused = engines_of(Setup(source.whole(batch), Parallel.read(parallel) or Parallel()))
    yield from [engine for engine in ENGINES if not refused[engine]][:1]
    yield OWN_EXECUTOR


def _options(source: Source, batch: int) -> Iterable[tuple[str, object]]:
    return (("batch", batch), *source.options) if isinstance(source, ZooModel) else source.options


def _typed(options: Iterable[tuple[str, object]]) -> Iterator[str]:
    """Yield options of a model as they are typed: a flag for what is true or false, else a name and a value."""
    for name, value in options:
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            yield f"--{flag}" if value else f"--no-{flag}"
        else:
            yield f"--{flag} {quote(str(value))}"
