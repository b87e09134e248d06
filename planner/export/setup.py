"""The training setup that engines are configured with: model, named parallelism and batch."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property

from planner.errors import PlanError
from planner.export.transformers import Transformer, transformer_of
from planner.graph.facts import amounts, batch_size, precision, weight_dtype
from planner.graph.ir import Graph
from planner.graph.optimizers import OPTIMIZERS, Optimizer
from planner.parallel import Parallel
from planner.plans.plan import Plan

DEVICES_PER_NODE = 8
HALVES = {"bfloat16": "bf16", "float16": "fp16"}
"""Engines' names of 16-bit dtypes."""


@dataclass(frozen=True)
class Setup:
    """A training of a graph with named parallelism, on nodes of `devices_per_node` devices.

    `command` holds the arguments of `plan` that create the plan; alternatively `saved` names a plan for `workers`
    workers. Raises PlanError for a graph without samples, and for a batch that micro-batches do not divide.
    """

    graph: Graph
    parallel: Parallel
    devices_per_node: int = DEVICES_PER_NODE
    command: tuple[str, ...] = ()
    saved: str = ""
    workers: int = 0
    name: str = ""

    def __post_init__(self) -> None:
        """Raise PlanError for a model without samples, or a batch that cannot be divided."""
        if batch_size(self.graph) is None:
            raise PlanError(f"{self.model}: expected a model with a batch of samples, found none")
        self.parallel.micro_batches(self.batch)
        object.__setattr__(self, "workers", self.workers or self.parallel.workers)

    @property
    def model(self) -> str:
        """The model's name."""
        return self.name or self.graph.name or "a model"

    @cached_property
    def transformer(self) -> Transformer | None:
        """The sizes of the transformer, if the model is a stack of identical blocks."""
        return transformer_of(self.graph)

    @property
    def batch(self) -> int:
        """Samples per iteration, over all workers."""
        return batch_size(self.graph) or 0

    @property
    def sequence(self) -> int | None:
        """Tokens per sample; None for a model without tokens."""
        tokens = amounts(self.graph).get("tokens")
        return tokens // self.batch if tokens else None

    @property
    def micro_batches(self) -> int:
        """Number of micro-batches per iteration."""
        given = self.parallel.micro_batch
        return self.parallel.micro_batches(self.batch) if given else self.graph.micro_batches

    @property
    def micro_batch(self) -> int:
        """Samples that a data-parallel worker processes at once."""
        return self.batch // (self.parallel.dp * self.micro_batches)

    @property
    def half(self) -> str:
        """Dtype of most activations if it has 16 bits, "bf16" or "fp16"; else ""."""
        return HALVES.get(precision(self.graph).partition(",")[0], "")

    @property
    def weights_are_half(self) -> bool:
        """True if weights, too, are kept in 16 bits."""
        return weight_dtype(self.graph) in HALVES

    @cached_property
    def optimizer(self) -> Optimizer | None:
        """The optimizer of the weights; None without updates."""
        names = {op: name for name, op in OPTIMIZERS.items() if op is not None}
        node = next((node for node in self.graph.nodes if node.op in names), None)
        if node is None:
            return None
        known = {field.name for field in fields(Optimizer)} - {"name"}
        return Optimizer(names[node.op], **{name: float(str(v)) for name, v in node.attrs.items() if name in known})

    @property
    def weight_bytes(self) -> int:
        """Bytes of all trained weights."""
        tensors = (self.graph.tensors[name] for name in self.graph.updates)
        return sum(tensor.nbytes for tensor in tensors if tensor.role == "weight")

    @property
    def stage_layers(self) -> tuple[int, ...]:
        """Number of blocks per chunk of a stage, in the order of the network, distributed as evenly as possible."""
        layers = self.transformer.layers if self.transformer else 0
        parts = self.parallel.pp * self.parallel.chunks
        return tuple(layers * (part + 1) // parts - layers * part // parts for part in range(parts))

    @property
    def torchrun(self) -> str:
        """The torchrun command line: one process per worker, on as many nodes as needed."""
        workers, most = self.workers, self.devices_per_node
        if workers <= most:
            return f"torchrun --nnodes 1 --nproc-per-node {workers}"
        if workers % most:
            raise PlanError(f"the number of workers must be a multiple of the {most} devices per node, found {workers}")
        where = '--rdzv-backend c10d --rdzv-endpoint "$HEAD_NODE:29500"'
        return f"torchrun --nnodes {workers // most} --nproc-per-node {most} {where}"


def parallel_of(plan: Plan) -> Parallel:
    """Return a plan's named parallelism; raise PlanError for a plan that has none."""
    search, ways = plan.search, plan.ways
    if text := search.details.get("parallel"):
        return Parallel.read(str(text)) or Parallel()
    if search.searcher == "data-parallel" and not ways.shares:
        return Parallel(dp=plan.workers)
    if search.searcher.startswith("zero-"):
        return Parallel(dp=plan.workers, zero=int(search.searcher.removeprefix("zero-")))
    raise PlanError(
        "expected a plan of named parallelism (plan MODEL --parallel tp=4,dp=2): engines configured by degrees cannot "
        "run a plan that splits tensors freely; export it with export-plan --to torchrun, dtensor or jax"
    )


@dataclass(frozen=True, slots=True)
class Launch:
    """An engine configured by degrees of parallelism: its title, and the functions that write its files.

    `cannot` returns a clause that says why the engine cannot run a setup, "" if it can. `notes` returns where it
    differs from the plan. `write` also takes the name of the module or file to write. With `any_plan` it runs every
    plan and needs no degrees.
    """

    title: str
    cannot: Callable[[Setup], str]
    notes: Callable[[Setup], tuple[str, ...]]
    write: Callable[[Setup, str], str]
    any_plan: bool = False

    def refusal(self, setup: Setup) -> str:
        """Return a message that the engine cannot run a setup, and why; "" if it can."""
        why = self.cannot(setup)
        return why and f"{self.title} cannot run {setup.parallel}: {why}"


def only_schedules(setup: Setup, names: tuple[str, ...]) -> str:
    """Return a clause if an engine's pipelines lack the setup's schedule; "" if they have it."""
    schedule = setup.parallel.schedule.partition(":")[0]
    if setup.parallel.pp == 1 or schedule in names:
        return ""
    return f"its pipelines run {' or '.join(names)}, not {schedule}"


def first(*clauses: str) -> str:
    """Return the first non-empty clause."""
    return next(filter(None, clauses), "")


def write(setup: Setup, name: str) -> str:
    """Return a shell script; `name` is the plan's file name if it is not saved yet."""
    saved = setup.saved or f"{name}.json"
    command = "" if setup.saved else shlex.join(["plan", *setup.command, "-o", saved]) + "\n"
    run = f"{setup.torchrun} -m executor {shlex.quote(saved)} --steps 100\n"
    return f"#!/bin/sh\n# {setup.model}: written by export-plan --to torchrun\n{command}{run}"


TORCHRUN = Launch("the executor", lambda setup: "", lambda setup: (), write, any_plan=True)
