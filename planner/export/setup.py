"""The training setup that engines are configured with: model, named parallelism and batch."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields, replace
from functools import cached_property

from planner.errors import PlanError
from planner.export.transformers import Transformer, transformer_of
from planner.graph.facts import amounts, batch_size, precision, weight_dtype
from planner.graph.ir import Graph, entries_of
from planner.graph.optimizers import OPTIMIZERS, Optimizer
from planner.parallel import Parallel
from planner.plans.plan import Plan

DEVICES_PER_NODE = 8
HALVES = {"bfloat16": "bf16", "float16": "fp16"}
"""Engines' names of 16-bit dtypes."""

READ = ("transformer", "sequence", "half", "weights_are_half", "optimizer", "scalar")
"""Properties of a Setup that are read from its graph."""


@dataclass(frozen=True)
class Setup:
    """A training of a graph with named parallelism, on nodes of `devices_per_node` devices.

    `command` holds the arguments of `plan` that create the plan; alternatively `saved` names a plan for `workers`
    workers. `batch` is the number of samples per iteration, over all workers (default: the graph's). With `float8`
    products in layers are computed in 8 bits, which the graph does not say. Raises PlanError for a graph without
    samples, and for a batch that micro-batches do not divide.
    """

    graph: Graph
    parallel: Parallel
    devices_per_node: int = DEVICES_PER_NODE
    command: tuple[str, ...] = ()
    saved: str = ""
    workers: int = 0
    name: str = ""
    batch: int = 0
    float8: bool = False

    def __post_init__(self) -> None:
        """Raise PlanError for a model without samples, or a batch that cannot be divided."""
        if (batch := self.batch or batch_size(self.graph)) is None:
            raise PlanError(f"{self.model}: expected a model with a batch of samples, found none")
        self.parallel.micro_batches(batch)
        object.__setattr__(self, "batch", batch)
        object.__setattr__(self, "workers", self.workers or self.parallel.workers)

    def divided(self, parallel: Parallel, batch: int) -> Setup:
        """Return the same training with other parallelism and batch; it reuses what was read from the graph."""
        other = replace(self, parallel=parallel, batch=batch, workers=0)
        other.__dict__.update({name: getattr(self, name) for name in READ})
        return other

    @property
    def model(self) -> str:
        """The model's name."""
        return self.name or self.graph.name or "a model"

    @cached_property
    def transformer(self) -> Transformer | None:
        """The sizes of the transformer, if the model is a stack of identical blocks."""
        return transformer_of(self.graph)

    @cached_property
    def sequence(self) -> int | None:
        """Tokens per sample; None for a model without tokens."""
        tokens = amounts(self.graph).get("tokens")
        return tokens // (batch_size(self.graph) or 1) if tokens else None

    @property
    def micro_batches(self) -> int:
        """Number of micro-batches per iteration."""
        given = self.parallel.micro_batch
        return self.parallel.micro_batches(self.batch) if given else self.graph.micro_batches

    @property
    def micro_batch(self) -> int:
        """Samples that a data-parallel worker processes at once."""
        return self.batch // (self.parallel.dp * self.micro_batches)

    @cached_property
    def half(self) -> str:
        """Dtype of most activations if it has 16 bits, "bf16" or "fp16"; else ""."""
        return HALVES.get(precision(self.graph).partition(",")[0], "")

    @cached_property
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

    @cached_property
    def scalar(self) -> str:
        """The name of a parameter without dimensions; "" without one."""
        weights = {tensor.name for tensor in self.graph.tensors.values() if tensor.is_parameter}
        entries = entries_of(self.graph).items()
        return next((name for name, entry in entries if entry.shape == () and entry.tensor in weights), "")

    @property
    def schedule(self) -> str:
        """The name of the pipeline schedule."""
        return self.parallel.schedule.partition(":")[0]

    @property
    def constants(self) -> dict[str, float]:
        """The optimizer's constants that engines are told; empty without an optimizer."""
        chosen = self.optimizer
        if chosen is None:
            return {}
        momentum = chosen.momentum if chosen.name == "momentum" else 0.0
        adam = {"beta1": chosen.beta1, "beta2": chosen.beta2, "eps": chosen.eps}
        decay = chosen.decay if chosen.name == "adamw" else chosen.weight_decay
        return {"lr": chosen.lr, **(adam if "adam" in chosen.name else {"momentum": momentum}), "weight_decay": decay}

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
    """An engine configured by degrees of parallelism: its title, its stack, and the functions that write its files.

    It runs its pipeline `schedules` and its `optimizers` (None: all), and products in `float8` or not. `limits` returns
    a clause that says why else the engine cannot run a setup, "" if it can; `notes` returns where it differs from the
    plan. `write` also takes the name of the module or file to write. With `any_plan` it runs every plan and needs no
    degrees.
    """

    title: str
    limits: Callable[[Setup], str]
    notes: Callable[[Setup], tuple[str, ...]]
    write: Callable[[Setup, str], str]
    stack: str = "compile"
    schedules: Collection[str] | None = None
    optimizers: Collection[str] | None = None
    any_plan: bool = False
    float8: bool = False

    def cannot(self, setup: Setup) -> str:
        """Return a clause that says why the engine cannot run a setup; "" if it can."""
        optimizer = setup.optimizer.name if setup.optimizer else "adam"
        if limit := self.limits(setup):
            return limit
        if self.optimizers is not None and optimizer not in self.optimizers:
            return f"it has no optimizer {optimizer}"
        if setup.float8 and not self.float8:
            return "float8 products need support in the module itself"
        if self.schedules is None or setup.parallel.pp == 1 or setup.schedule in self.schedules:
            return ""
        return f"its pipelines run {' or '.join(self.schedules)}, not {setup.schedule}"

    def refusal(self, setup: Setup) -> str:
        """Return a message that the engine cannot run a setup, and why; "" if it can."""
        why = self.cannot(setup)
        return why and f"{self.title} cannot run {setup.parallel}: {why}"


def uneven_heads(setup: Setup, *, copies: bool) -> str:
    """Return a clause if tensor-parallel workers cannot have equally many heads; "" if they can.

    With `copies`, several workers may hold the same head of keys and values.
    """
    model, tp = setup.transformer, setup.parallel.tp
    if model is not None and model.heads % tp:
        return f"tp={tp} does not divide {model.heads} heads"
    if model is None or model.groups % tp == 0 or (copies and tp % model.groups == 0):
        return ""
    return f"tp={tp} does not divide {model.groups} heads of keys and values"


def uneven_sequence(setup: Setup) -> str:
    """Return a clause if `sp` and context parallelism cannot split the sequence into equal parts; "" if they can."""
    parallel = setup.parallel
    parts = (parallel.tp if parallel.sp else 1) * (2 * parallel.cp if parallel.cp > 1 else 1)
    return (
        f"{parts} equal parts do not divide its sequence of {setup.sequence}" if (setup.sequence or 0) % parts else ""
    )


def first(*clauses: str) -> str:
    """Return the first non-empty clause."""
    return next(filter(None, clauses), "")


def write(setup: Setup, name: str) -> str:
    """Return a shell script; `name` is the plan's file name if it is not saved yet."""
    saved = setup.saved or f"{name}.json"
    command = "" if setup.saved else shlex.join(["plan", *setup.command, "-o", saved]) + "\n"
    run = f"{setup.torchrun} -m executor {shlex.quote(saved)} --steps 100\n"
    return f"#!/bin/sh\n# {setup.model}: written by export-plan --to torchrun\n{command}{run}"


TORCHRUN = Launch("the executor", lambda setup: "", lambda setup: (), write, "ours", any_plan=True)
