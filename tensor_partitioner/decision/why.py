"""Explanations in words: why a candidate loses to another, and the verdict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from planner.export.transformers import transformer_of
from planner.graph.facts import sequence_length, weight_dtype
from planner.graph.ir import Graph
from planner.parallel import Parallel
from simulator.projection.block import Block
from simulator.projection.network import Cluster
from simulator.projection.result import (
    ALL_REDUCE,
    BUBBLE,
    COMMUNICATION,
    IDEAL,
    INEFFICIENCY,
    INEFFICIENCY_AND_WAITING,
    MODEL_PARALLEL,
    SHARDING,
    STRAGGLERS,
    Projection,
)
from tensor_partitioner.decision.record import (
    ALL_ALIKE,
    FAMILIES,
    Decision,
    MachineFacts,
    ModelFacts,
    RankedCandidate,
    SearchFacts,
    of_families,
)
from tensor_partitioner.display import number, percent, quantity, seconds as format_seconds
from tensor_partitioner.replicas import Inner, Source

AS_FAST = 1.01
"""Ratio of step times up to which two candidates count as equally fast."""

MOST_CAUSES = 3
LEAST_SHARE = 0.05
"""Differences below this share of the largest are left out."""

OF_THE_SLOWEST = (INEFFICIENCY_AND_WAITING, IDEAL, INEFFICIENCY, BUBBLE, STRAGGLERS)
"""Causes that depend on the slowest worker. All others wait for it."""

OF_THE_STEP = (
    *("fits", "samples_per_s", "utilisation", "needed_bytes", "capacity_bytes", "margin_bytes"),
    *("roof_factor", "micro_batches", "memory", "stages"),
)
"""What a candidate's record takes from its predicted step unchanged."""

UNEVEN = 1.1
"""Ratio of the slowest stage to the mean above which stages count as uneven."""


def left_open(search: SearchFacts) -> str:
    """Return how many candidates were not reached, and by how much they may be faster."""
    return (
        f"{search.unfinished:,} candidates were not priced; none takes less than "
        f"{format_seconds(search.lower_bound_s)}, {percent(search.gap / (1 + search.gap))} less than the best"
    )


def not_their_best(decision: Decision) -> str:
    """Return the note that rows of other families are not their families' best; "" if there is only one family."""
    if len({row.family for row in decision.candidates}) == 1:
        return ""
    return "≤: the fastest of its family that was priced; candidates that cannot be the best of all were left out."


def signed(seconds: float) -> str:
    """Format a difference of two durations with its sign.

    >>> signed(1.2), signed(-0.0004)
    ('+1.2 s', '-400 us')
    """
    return f"{'+' if seconds >= 0 else '-'}{format_seconds(float(f'{abs(seconds):.3g}'))}"


def why(candidate: RankedCandidate, best: RankedCandidate, heads: int | None = None) -> str:
    """Return by how much a candidate is slower than the best, split by cause.

    `heads` is the number of attention heads, None without attention. Tensor parallel workers that do not divide it have
    unequal work.
    """
    if not candidate.fits:
        return f"{quantity(-candidate.margin_bytes, 'B')} too large: {_largest(candidate)}"
    net, parts = candidate.seconds_per_step - best.seconds_per_step, _parts(candidate, best)
    cause, most = max(parts.items(), key=lambda item: item[1])
    if net < 0:
        left = quantity(candidate.margin_bytes, "B")
        return f"{signed(net)}, but the {left} of memory that it leaves may not suffice"
    if most <= 0 or not net:
        return "as fast"
    uneven = _uneven(candidate, best, heads) if cause in OF_THE_SLOWEST else ""
    return "; ".join(filter(None, (difference(candidate, best), uneven)))


def difference(candidate: RankedCandidate, other: RankedCandidate) -> str:
    """Return by how much longer a candidate's step is than another's, by cause, as in `-1.2 s: compute -1.5 s`."""
    if candidate.shares == other.shares:
        return "no difference" if candidate == other else "as fast"
    ranked = sorted(_parts(candidate, other).items(), key=lambda item: -abs(item[1]))[:MOST_CAUSES]
    least = LEAST_SHARE * abs(ranked[0][1])
    told = [f"{name.removeprefix('exposed ')} {signed(part)}" for name, part in ranked if abs(part) >= least]
    return f"{signed(candidate.seconds_per_step - other.seconds_per_step)}: {', '.join(told)}"


def _parts(candidate: RankedCandidate, other: RankedCandidate) -> dict[str, float]:
    causes = {**other.shares, **candidate.shares}
    return {cause: candidate.shares.get(cause, 0.0) - other.shares.get(cause, 0.0) for cause in causes}


def why_searched(row: RankedCandidate, rows: Iterable[RankedCandidate]) -> str:
    """Return why the plan of least time is slower than that of least bytes; "" if it is not."""
    faster = [other.objective for other in rows if other.fits and other.seconds_per_step < row.seconds_per_step]
    if row.objective != "time" or "bytes" not in faster:
        return ""
    return "; slower than the plan of least bytes, because the search of least time assumes no fusion and no overlap"


def _uneven(candidate: RankedCandidate, best: RankedCandidate, heads: int | None) -> str:
    """Return how the candidate's workers differ in work more than the best's do; "" if they do not."""
    parallel = Parallel.read(candidate.parallel)
    if parallel is not None and heads is not None and heads % parallel.tp:
        return f"{parallel.tp} workers do not divide {heads} heads"
    times, stage = _slowest_stage(candidate)
    if times <= max(UNEVEN, _slowest_stage(best)[0]):
        return ""
    which = "the last stage" if stage == len(candidate.stages) else f"stage {stage} of {len(candidate.stages)}"
    return f"{which} takes {times:.2f} times the mean"


def _slowest_stage(candidate: RankedCandidate) -> tuple[float, int]:
    """Return the ratio of the slowest stage to the mean, and the stage's number from 1."""
    seconds = [stage.forward_s + stage.backward_s for stage in candidate.stages]
    if not sum(seconds):
        return 1.0, 0
    slowest = max(seconds)
    return slowest * len(seconds) / sum(seconds), seconds.index(slowest) + 1


def _largest(candidate: RankedCandidate) -> str:
    line = max(candidate.memory, key=lambda line: line.nbytes)
    return f"{quantity(line.nbytes, 'B')} of {line.what}"


def verdict(
    model: ModelFacts, machine: MachineFacts, candidates: tuple[RankedCandidate, ...], one_device_s: float | None = None
) -> str:
    """Return the decision in one or two sentences. If one device is as fast as all, they say that first."""
    best = candidates[0]
    if not best.fits:
        remedies = " or more devices" if "recompute=full" in best.name else ", more devices or recomputation"
        return (
            f"Nothing fits: {model.name} in {model.precision} with a batch of {model.batch} takes "
            f"{quantity(best.needed_bytes, 'B')} of the {quantity(best.capacity_bytes, 'B')} of a device of "
            f"{machine.name} even as {best.name}, the smallest candidate that was priced; "
            f"a smaller batch{remedies} would help."
        )
    alone = one_device(machine, best, one_device_s)
    said = (
        f"{alone}Train {model.name} in {model.precision} on {machine.devices} x {machine.device} as "
        f"{best.family} ({best.name}): {format_seconds(best.seconds_per_step)} a step, "
        f"{number(best.samples_per_s)} samples/s, {percent(best.utilisation)} MFU, "
        f"{quantity(best.margin_bytes, 'B')} of memory to spare."
    )
    families = of_families(candidates)
    others = [c for c in families if c is not best and c.fits and c.seconds_per_step >= best.seconds_per_step]
    if not others:
        return f"{said} Nothing else that was priced leaves as much memory." if len(families) > 1 else said
    alike = [c for c in others if c.seconds_per_step < AS_FAST * best.seconds_per_step]
    if alike:
        said = f"{said} Within {AS_FAST - 1:.0%}: {', '.join(c.family for c in alike)}."
    slower = others[len(alike) :]
    if not slower:
        return said
    ratio = slower[0].seconds_per_step / best.seconds_per_step
    return f"{said} Next: {slower[0].family} ({slower[0].name}), {ratio:.3g} times as long; {slower[0].why}."


def one_device(machine: MachineFacts, best: RankedCandidate, one_device_s: float | None) -> str:
    """Return the advice to use one device if it is as fast as all; "" otherwise."""
    if one_device_s is None or machine.devices == 1:
        return ""
    how = "as fast" if best.seconds_per_step < AS_FAST * one_device_s else "faster"
    same = "do the same work" if best.name.endswith(ALL_ALIKE) else "gain nothing"
    return (
        f"Use one device: it is {how}, {format_seconds(one_device_s)} a step; {machine.devices} devices {same}. "
        "If all have to be used: "
    )


Projected = tuple[str, str, float, Projection]
"""A candidate's name, family, lower bound in seconds, and predicted step."""


def model_facts(source: Source, inner: Inner, blocks: Sequence[Block], batch: int, operations: float) -> ModelFacts:
    """Return the facts of a model, from one device that does all the work."""
    graph = inner.replica.graph
    return ModelFacts(
        name=source.name, parameters=sum(block.parameters for block in blocks), batch=batch,
        sequence=sequence_length(graph), layers=sum(block.is_layer for block in blocks), operations=operations,
        dtype=inner.dtype, weights=weight_dtype(graph) or "", products=inner.products or "",
        optimizer=str(dict(source.options).get("optimizer") or ("its own" if graph.updates else "none")),
    )  # fmt: skip


def machine_facts(cluster: Cluster, dtype: str) -> MachineFacts:
    """Return the facts of a machine, with its peak rate for `dtype`."""
    devices = cluster.built.devices
    return MachineFacts(
        name=cluster.name, devices=cluster.devices, per_node=cluster.per_node,
        device=" and ".join(sorted({device.spec.name for device in devices})),
        memory_bytes=min(device.spec.memory_bytes or 0.0 for device in devices),
        peak_flop_per_s=min(device.peak(dtype) for device in devices),
    )  # fmt: skip


def ranked(
    projected: Sequence[Projected], model: ModelFacts, graph: Graph, margin: float
) -> tuple[RankedCandidate, ...]:
    """Return the candidates sorted: those that fit by seconds, then the others by bytes.

    Those that would fit with `margin` times the bytes come first. Each says why it loses to the first.
    """
    rows = [_candidate(*row, model) for row in projected]
    rows.sort(key=lambda row: row.seconds_per_step if row.fits else row.needed_bytes)
    rows.sort(key=lambda row: (row.needed_bytes * margin > row.capacity_bytes, not row.fits))
    transformer = transformer_of(graph)
    heads = None if transformer is None else transformer.heads
    for place, row in enumerate(rows):
        if place or not row.fits:
            rows[place] = replace(row, why=why(row, rows[0], heads) + why_searched(row, rows))
    return tuple(rows)


def _candidate(name: str, kind: str, bound_s: float, projection: Projection, model: ModelFacts) -> RankedCandidate:
    """Return the record of a candidate."""
    shares, tokens = projection.shares, model.sequence
    exposed = (COMMUNICATION, MODEL_PARALLEL, SHARDING, ALL_REDUCE)
    return RankedCandidate(
        name=name, parallel=None if kind in FAMILIES.values() else name, family=kind,
        seconds_per_step=projection.seconds, bound_s=bound_s,
        tokens_per_s=None if tokens is None else projection.samples_per_s * tokens,
        exposed_s=sum(shares.get(cause, 0.0) for cause in exposed), bubble_s=shares.get(BUBBLE, 0.0),
        shares=dict(shares), sent_bytes=dict(projection.sent_bytes),
        **{name: getattr(projection, name) for name in OF_THE_STEP},
    )  # fmt: skip
