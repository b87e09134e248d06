"""From what was projected to what a decision says."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from planner.export.transformers import transformer_of
from planner.graph.facts import sequence_length, weight_dtype
from planner.graph.ir import Graph
from simulator.projection.block import Block
from simulator.projection.cluster import Cluster
from simulator.projection.result import BUBBLE, COMMUNICATION, GRADIENTS, MODEL_PARALLEL, SHARDING, Projection
from tensor_partitioner.decision.record import FAMILIES, MachineFacts, ModelFacts, RankedCandidate, SearchFacts
from tensor_partitioner.decision.why import left_open, why, why_searched
from tensor_partitioner.replicas import Inner, Source

Projected = tuple[str, str, float, Projection]
"""A candidate's name, its family, its bound in seconds, and its projection."""


def warning(search: SearchFacts) -> str:
    """Say that time ran out where what was left out may be faster."""
    return f"Time ran out: {left_open(search)}. " if search.unfinished else ""


def model_facts(source: Source, inner: Inner, blocks: Sequence[Block], batch: int, operations: float) -> ModelFacts:
    """Record a model, of which one device does all the work."""
    graph = inner.replica.graph
    return ModelFacts(
        name=source.name,
        parameters=sum(block.parameters for block in blocks),
        batch=batch,
        sequence=sequence_length(graph),
        layers=sum(block.is_layer for block in blocks),
        operations=operations,
        dtype=inner.dtype,
        weights=weight_dtype(graph) or "",
        optimizer=str(dict(source.options).get("optimizer") or ("its own" if graph.updates else "none")),
    )


def machine_facts(cluster: Cluster, dtype: str) -> MachineFacts:
    """Record a machine, with its peak in a dtype."""
    devices = cluster.built.devices
    return MachineFacts(
        name=cluster.name,
        devices=cluster.devices,
        per_node=cluster.per_node,
        device=" and ".join(sorted({device.spec.name for device in devices})),
        memory_bytes=min(device.spec.memory_bytes or 0.0 for device in devices),
        peak_flop_per_s=min(device.peak(dtype) for device in devices),
    )


def ranked(projected: Sequence[Projected], model: ModelFacts, graph: Graph) -> tuple[RankedCandidate, ...]:
    """Record candidates, best first, those that fit before those that do not, with why they lose to the first."""
    rows = [_candidate(*row, model) for row in projected]
    rows.sort(key=lambda row: (not row.fits, row.seconds_per_step if row.fits else row.needed_bytes))
    transformer = transformer_of(graph)
    heads = None if transformer is None else transformer.heads
    return tuple(_with_why(row, rows, heads) for row in rows)


def _candidate(name: str, kind: str, bound_s: float, projection: Projection, model: ModelFacts) -> RankedCandidate:
    """Record a candidate."""
    shares, tokens = projection.shares, model.sequence
    exposed = (COMMUNICATION, MODEL_PARALLEL, SHARDING, GRADIENTS)
    return RankedCandidate(
        name=name,
        parallel=None if kind in FAMILIES.values() else name,
        family=kind,
        seconds_per_step=projection.seconds,
        bound_s=bound_s,
        fits=projection.fits,
        samples_per_s=projection.samples_per_s,
        tokens_per_s=None if tokens is None else projection.samples_per_s * tokens,
        utilisation=projection.utilisation,
        needed_bytes=projection.needed_bytes,
        capacity_bytes=projection.capacity_bytes,
        margin_bytes=projection.margin_bytes,
        exposed_s=sum(shares.get(cause, 0.0) for cause in exposed),
        bubble_s=shares.get(BUBBLE, 0.0),
        roof_factor=projection.roof_factor,
        micro_batches=projection.micro_batches,
        shares=dict(shares),
        memory=projection.memory,
        stages=projection.stages,
        sent_bytes=dict(projection.sent_bytes),
    )


def _with_why(row: RankedCandidate, rows: Sequence[RankedCandidate], heads: int | None) -> RankedCandidate:
    if row is rows[0] and row.fits:
        return row
    return replace(row, why=why(row, rows[0], heads) + why_searched(row, rows))
