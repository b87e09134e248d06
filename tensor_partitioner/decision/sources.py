"""Inputs of a decision: check arguments, load the model, read pins; and the commands that repeat a decision."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from shlex import quote

import planner
from planner.errors import GraphError, PlanError
from planner.export.setup import DEVICES_PER_NODE, Launch, Setup
from planner.export.targets import engines
from planner.graph.ir import Graph
from planner.model_source import model_and_options
from planner.models.zoo import PRECISIONS, defaults, is_zoo_name, trained_as
from planner.parallel import Parallel
from planner.plans.check import MOST_WORKERS
from planner.plans.plan import Plan
from planner.search.pins import Degree, read_pins
from simulator.projection.network import Cluster
from tensor_partitioner.decision.record import MachineFacts, RankedCandidate
from tensor_partitioner.replicas import GraphModel, Source, ZooModel
from topologies import Machine, TopologyError
from topologies.machine import Device

SINGLE = "float32"
MODULE = "by torch.autocast around the forward pass of a module"


def hint(dtype: str, device: Device) -> str:
    """Return the advice to use half precision, for a float32 model on a device that is faster in half; "" otherwise.

    >>> from topologies import load_topology
    >>> device = load_topology("dgx-a100").devices[0]
    >>> hint("float32", device).partition(":")[0], hint("bfloat16", device)
    ('Products are in float32 without TF32, the peak in bfloat16 is 16 times as high', '')
    """
    rates = device.spec.peak_flop_per_s.by_dtype()
    half, precision = next((pair for pair in PRECISIONS if pair[0] in rates), (SINGLE, ""))
    if dtype != SINGLE or rates.get(half, 0.0) <= rates.get(SINGLE, 0.0):
        return ""
    return (
        f"Products are in {SINGLE} without TF32, the peak in {half} is {rates[half] / rates[SINGLE]:.2g} times as "
        f"high: --dtype {precision} tries it, {MODULE}."
    )


def is_alike(machine: Cluster) -> bool:
    """Return whether one device stands for all of a machine: all have one type, and none is calibrated."""
    specs = {device.spec.name: device.spec for device in machine.built.devices}
    return len(specs) == 1 and all(spec.measured is None for spec in specs.values())


def require_alike(machine: Cluster) -> None:
    """Raise a TopologyError if a step cannot be predicted from one device.

    A framework's stack describes software for GPUs and is applied to one device that stands for all. That fails for
    devices of several types, and for ranks of a calibrated host, which share its cores and memory.
    """
    if any(device.spec.measured is not None for device in machine.built.devices):
        raise TopologyError(
            f"{machine.name}: expected a machine without measured times of its ranks for a framework's stack, found a "
            "calibrated one; decide and --stack ours use these times"
        )
    types = sorted({device.spec.name for device in machine.built.devices})
    if len(types) > 1:
        raise TopologyError(
            f"{machine.name}: expected devices of one type for a framework's stack, found {', '.join(types)}; "
            "decide and --stack ours simulate mixed devices"
        )


SWITCH = {"on": True, "off": False}
"""Values of the pin `sp`."""


def degrees_of(pins: Sequence[str]) -> tuple[Degree, ...]:
    """Read pins of named parallelism, such as "tp=4". Raises PlanError for others."""
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
    """Return the model as a source of replicas, and the samples per step; None for a zoo model without `batch`.

    Raises GraphError if the options do not fit the model.
    """
    if isinstance(model, str) and is_zoo_name(model):
        for name, pin in (("micro_batches", "micro-batch=4"), ("recompute", "recompute=full")):
            if name in options:
                flag = name.replace("_", "-")
                raise GraphError(f"{model}: --{flag} is decided by the search: use --pin, as in --pin {pin}")
        return ZooModel.of(model, trained_as(model, machine, options)), batch
    if isinstance(model, str):
        given = {**options, **({} if batch is None else {"batch": batch})}
        graph, made_with = model_and_options(model, defaults(machine, given), **given)
        source = GraphModel(graph, options=tuple(sorted(made_with.items())), is_made=True)
    else:
        source = GraphModel(model)
    samples = source.samples * source.graph.micro_batches
    if batch is not None and batch != samples:
        raise GraphError(f"{source.name}: expected the batch of its graph, {samples}, found {batch}")
    return source, samples


def plan_named(source: Source, batch: int, parallel: Parallel) -> Plan:
    """Plan a step of a batch under named parallelism. Raises GraphError or PlanError if that is impossible."""
    graph = source.whole(batch, parallel)
    return planner.plan(graph, 1) if parallel.workers == 1 else planner.plan(graph, parallel=parallel)


STACK = "compile"
"""Default stack of named parallelism."""

OWN_EXECUTOR = "torchrun"


def commands(  # noqa: PLR0913, PLR0917 -- what a decision was made of
    source: Source, setup: Setup, machine: MachineFacts, best: RankedCandidate, pins: Iterable[Degree],
    engine: Launch | None, stack: str,
) -> Iterator[str]:  # fmt: skip
    """Yield the commands that predict, plan, run and export a decision's best candidate.

    `setup` is that of the best; `stack`, `pins` and `engine` are those of the decision.
    """
    options = (("batch", setup.batch), *source.options) if isinstance(source, ZooModel) else source.options
    words = " ".join((quote(source.name), *typed(options)))
    running = [f"mpirun -n {machine.devices} execute plan.json"] if machine.devices <= MOST_WORKERS else []
    topo = f"--topo {quote(machine.name)}"
    known = {name: exporter for name, exporter in engines().items() if exporter is (engine or exporter)}
    held = [f" --pin {quote(pin.asked)}" for pin in pins] + [f" --engine {name}" for name in known if engine]
    priced = "" if stack == (engine.stack if engine else STACK) else f" --stack {stack}"
    decided = f"decide {words} {topo}{priced}{''.join(held)} -o plan.json"
    if best.parallel is None:
        yield from (decided, *running, f"export-plan plan.json --to {OWN_EXECUTOR}")
        return
    named = f"{words} --parallel {best.name}"
    by = "" if stack == STACK else f" --stack {stack}"
    yield f"simulate {named} {topo}{by}"
    if not setup.float8:  # which a plan cannot state
        yield f"plan {named} -o plan.json" if isinstance(source, ZooModel) else decided
        yield from running
    nodes = "" if machine.per_node in {1, DEVICES_PER_NODE} else f" {topo}"
    for name in sorted(known, key=lambda name: known[name].stack != stack.partition(",")[0]):
        if not known[name].cannot(setup):
            yield f"export-plan {named} --to {name}{nodes}"


def typed(options: Iterable[tuple[str, object]]) -> Iterator[str]:
    """Yield options of a model as they are typed: a flag for what is true or false, else a name and a value."""
    for name, value in options:
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            yield f"--{flag}" if value else f"--no-{flag}"
        else:
            yield f"--{flag} {quote(str(value))}"
