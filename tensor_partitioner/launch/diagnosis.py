"""Compare a launch file with its prediction: does it fit, is its pace normal, what would be faster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace

from planner.errors import GraphError, InputError, PlanError
from planner.graph.facts import amounts, batch_size
from planner.parallel import Parallel
from planner.search.alternatives.labels import experts_of
from simulator.projection.network import Cluster
from simulator.projection.result import Projection
from tensor_partitioner.decision.measured import seconds_of
from tensor_partitioner.decision.record import COVERAGE, band, published_scores
from tensor_partitioner.decision.sources import source_of
from tensor_partitioner.launch.launch import LaunchFile
from tensor_partitioner.projection import project_source
from tensor_partitioner.replicas import Source

CHANGES = 3
"""Number of suggested settings, fastest first."""

LEAST_GAIN = 0.01
"""Suggestions that save less than this share of a step are left out."""


@dataclass(frozen=True, slots=True)
class OtherSetting:
    """A changed setting of a launch: old and new value by word, the resulting parallelism, and its predicted step."""

    words: Mapping[str, tuple[object, object]]
    parallel: Parallel
    step: Projection


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A launch on all devices of a machine, its predicted step, and its measured seconds per step, if given.

    `band` is the range of measured over predicted seconds that holds 90% of published runs. `tokens` are per step; None
    for a model without sequences. `changes` are faster settings; if the launch does not fit, settings that fit.
    """

    launch: LaunchFile
    machine: Cluster
    parallel: Parallel
    step: Projection
    tokens: int | None
    band: tuple[float, float]
    measured_s: float | None
    changes: tuple[OtherSetting, ...]

    @property
    def verdict(self) -> str:
        """How the measured pace compares with the prediction; "" without a measurement."""
        if self.measured_s is None:
            return ""
        ratio, (low, high) = self.measured_s / self.step.seconds, self.band
        runs = f"the range of {COVERAGE:.0%} of published runs"
        if ratio > high:
            return f"slow: {ratio - 1:.0%} longer than predicted, outside {runs}"
        if ratio < low:
            return f"faster than expected: {1 - ratio:.0%} shorter than predicted, outside {runs}"
        return f"normal: {abs(ratio - 1):.0%} {'longer' if ratio > 1 else 'shorter'} than predicted, within {runs}"


def diagnose(launch: LaunchFile, machine: Cluster, measured: str | None = None) -> Diagnosis:
    """Predict a launch on all devices of a machine. Raises InputError, naming the file, if that is impossible."""
    try:
        return _diagnosed(launch, machine, measured)
    except (PlanError, GraphError) as error:
        raise InputError(f"{launch.path}: {error}") from error


def _diagnosed(launch: LaunchFile, machine: Cluster, measured: str | None) -> Diagnosis:
    parallel, batch = launch.parallel(machine.devices), launch.samples(machine.devices)
    source, _ = source_of(launch.model, machine.built, batch, launch.options)
    step = project_source(source, batch, parallel, machine, launch.stack)
    graph = source.whole(parallel.micro_batch or 1)
    tokens = amounts(graph).get("tokens")
    tokens = None if tokens is None else tokens * batch // (batch_size(graph) or 1)
    per_device = launch.engine == "torchtitan"
    return Diagnosis(
        launch=launch,
        machine=machine,
        parallel=parallel,
        step=step,
        tokens=tokens,
        band=band(published_scores(), experts=experts_of(graph) > 1),
        measured_s=None if measured is None else seconds_of(measured, step, tokens, tps_of_device=per_device),
        changes=tuple(_changes(launch, source, machine, parallel, step)),
    )


def _changes(
    launch: LaunchFile, source: Source, machine: Cluster, parallel: Parallel, step: Projection
) -> Iterator[OtherSetting]:
    """Yield the changes of a single setting that fit and gain most."""
    most = step.seconds * (1 - LEAST_GAIN) if step.fits else float("inf")
    faster: list[OtherSetting] = []
    for other in dict.fromkeys(_neighbours(parallel)):
        words = _words(parallel, other)
        kinds = {str(value) for _, value in words.values()}
        if not words.keys() <= launch.names.keys() or (kinds & {"selective"} and not launch.selects):
            continue
        try:
            projected = project_source(source, step.samples, other, machine, launch.stack)
        except (PlanError, GraphError):
            continue
        if projected.fits and projected.seconds < most:
            faster.append(OtherSetting(words, other, projected))
    yield from sorted(faster, key=lambda change: change.step.seconds)[:CHANGES]


def _words(before: Parallel, after: Parallel) -> dict[str, tuple[object, object]]:
    pairs = {field.name: (getattr(before, field.name), getattr(after, field.name)) for field in fields(Parallel)}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1] and name != "dp"}


def _neighbours(at: Parallel) -> Iterator[Parallel]:
    """Yield the parallelisms over the same devices that differ in one setting. Some may be impossible."""
    given = {field.name: getattr(at, field.name) for field in fields(Parallel)}
    micro_batch = at.micro_batch or 1
    single: list[dict[str, object]] = [{"micro_batch": count} for count in (2 * micro_batch, micro_batch // 2)]
    single += [{"recompute": kind} for kind in ("none", "selective", "full")]
    single += [{"zero": stage} for stage in range(4)]
    single += [{"sp": not at.sp}]
    single += [{"schedule": schedule} for schedule in ("1f1b", "interleaved:2", "interleaved:4")]
    for axis in ("tp", "pp", "cp"):
        degree = getattr(at, axis)
        if at.dp % 2 == 0:
            single.append({axis: 2 * degree, "dp": at.dp // 2})
        if degree % 2 == 0:
            single.append({axis: degree // 2, "dp": at.dp * 2})
    for other in single:
        yield from _possible({**given, **other})


def _possible(given: dict[str, object]) -> Iterator[Parallel]:
    """Yield the parallelism with these words, without settings that have no effect; nothing if it is invalid."""
    of = {name: int(str(given[name])) for name in ("pp", "dp", "cp", "tp")}
    kept = given | {"sp": bool(given["sp"]) and of["tp"] > 1, "zero": given["zero"] if of["dp"] * of["cp"] > 1 else 0}
    try:
        yield replace(Parallel(), **(kept | ({} if of["pp"] > 1 else {"schedule": "1f1b"})))  # type: ignore[arg-type]
    except PlanError:
        return
