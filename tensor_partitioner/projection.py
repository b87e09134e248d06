"""Projecting named parallelism: from a model's name and a machine's to a step's seconds and memory."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import planner
from planner.models import gpt, llama
from planner.parallel import Parallel
from simulator.projection.blocks import Block, blocks_of, repeated, tied_parameters
from simulator.projection.cluster import cluster, cluster_of, require_devices
from simulator.projection.network import Grid, Network
from simulator.projection.projection import Job, Projection
from simulator.projection.projection import project as project_job
from simulator.projection.replica import Replica, replica
from simulator.projection.stack import Stack, stack_named
from topologies import Machine

LAYERS_BUILT = 3
"""Of layers that repeat: the first, one like all between, the last."""

SIZES: Mapping[str, gpt.Size | llama.Size] = {**gpt.SIZES, **llama.SIZES, **llama.EXPERTS}
MOST = 256


def project(  # noqa: PLR0913 -- the settings by their names
    name: str,
    options: Mapping[str, object],
    *,
    batch: int,
    parallel: Parallel,
    machine: str | Path | Machine,
    stack: str | Stack = "megatron",
) -> Projection:
    """Project a step of a zoo's model under named parallelism on a machine.

    `options` are the model's, without its batch. Raises GraphError, PlanError and TopologyError for what cannot be.

    >>> parallel = Parallel.read("tp=8,pp=8,dp=2,micro-batch=1")
    >>> step = project("gpt-3-175b", {"dtype": "mixed"}, batch=64, parallel=parallel, machine="hgx-h100-nodes-16")
    >>> step.devices, 5 < step.seconds < 50
    (128, True)
    """
    whole = cluster_of(machine) if isinstance(machine, Machine) else cluster(machine)
    require_devices(whole, parallel.workers)
    micro_batch = batch // parallel.dp if parallel.micro_batch is None else parallel.micro_batch
    count = parallel.micro_batches(batch)
    within = Parallel(tp=parallel.tp, cp=parallel.cp, sp=parallel.sp)
    inner = _inner(name, tuple(sorted(options.items())), micro_batch, within)
    runs = stack_named(stack) if isinstance(stack, str) else stack
    network = Network(whole, Grid(parallel.pp, parallel.dp, parallel.tp * parallel.cp))
    blocks = blocks_of(inner.replica, runs.kernels, whole.built.devices[0], network)
    blocks, tied_bytes = _with_tied(blocks, inner.replica, parallel.pp)
    return project_job(
        Job(
            blocks=repeated(blocks, inner.layers) if inner.layers else blocks,
            parallel=parallel,
            micro_batches=count,
            samples=batch,
            stack=runs,
            device=whole.built.devices[0],
            network=network,
            dtype=inner.dtype,
            tied_bytes=tied_bytes,
        )
    )


class _Inner(NamedTuple):
    """A replica at work on a micro-batch, how many layers there are of which it has few (None: all), its dtype."""

    replica: Replica
    layers: int | None
    dtype: str


@lru_cache(MOST)
def _inner(name: str, options: tuple[tuple[str, object], ...], micro_batch: int, parallel: Parallel) -> _Inner:
    few_name, few_options, layers = with_few_layers(name, dict(options))
    graph = planner.model(few_name, **few_options, batch=2 * micro_batch, micro_batches=2)
    plan = planner.plan(graph, 1) if parallel.tp * parallel.cp == 1 else planner.plan(graph, parallel=parallel)
    computed = (tensor.dtype for tensor in graph.tensors.values() if tensor.role == "activation")
    return _Inner(replica(plan), layers, Counter(computed).most_common(1)[0][0])


def with_few_layers(name: str, options: Mapping[str, object]) -> tuple[str, dict[str, object], int | None]:
    """Return a model like the one named, with few layers where layers repeat, and how many there would be."""
    options = dict(options)
    if match := re.fullmatch(r"(transformer|llama)-([1-9]\d*)-(\d+k?)", name):
        layers = int(match[2])
        return f"{match[1]}-{min(layers, LAYERS_BUILT)}-{match[3]}", options, layers
    if name in SIZES:
        layers = int(str(options.pop("layers", None) or SIZES[name].layers))
        return name, {**options, "layers": min(layers, LAYERS_BUILT)}, layers
    return name, options, None


def _with_tied(blocks: tuple[Block, ...], inner: Replica, stages: int) -> tuple[tuple[Block, ...], int]:
    """Return the blocks where the last stage has what it shares with the first, too, and its gradient's bytes."""
    first, last = blocks[0], blocks[-1]
    elements = tied_parameters(inner)
    if stages == 1 or not elements or not first.parameters:
        return blocks, 0
    share = elements / first.parameters

    def more(of_last: int, of_first: int) -> int:
        return int(of_last + share * of_first)

    last = replace(
        last,
        parameters=more(last.parameters, first.parameters),
        weight_bytes=more(last.weight_bytes, first.weight_bytes),
        state_bytes=more(last.state_bytes, first.state_bytes),
        copied_bytes=more(last.copied_bytes, first.copied_bytes),
        gradient_bytes=more(last.gradient_bytes, first.gradient_bytes),
    )
    return (*blocks[:-1], last), round(share * first.gradient_bytes)
