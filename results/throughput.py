"""What every system makes of a model on a p2.8xlarge: Tofu's Figures 8 and 9.

A system is given the largest batch, a power of two, that fits in memory; ideal, whose memory is unlimited, the batch
that the paper gives it, on each device; and swapping, which runs with batches far too large, the one of up to that with
which it trains most samples per second. The same program runs on both variants of the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from multiprocessing import get_context
from typing import Any

import planner
from results.wresnet_throughput.systems.host import with_host_memory
from results.wresnet_throughput.systems.largest_batch import largest_batch
from results.wresnet_throughput.systems.registry import SYSTEMS
from results.wresnet_throughput.systems.system import NoRoomError, SystemProgram, SystemRequest, TooFewSamplesError
from simulator.interpreter import interpret
from topologies import Machine, load_topology

MACHINE, HALVES = "p2.8xlarge", "p2.8xlarge-halves"
DEVICES = 8
MICRO_BATCHES = 8

Row = dict[str, Any]
Build = Callable[[int], SystemProgram]


@lru_cache(maxsize=2)
def graph_of(model: str, batch: int, micro_batches: int) -> planner.Graph:
    """Return a model's training graph."""
    return planner.model(model, batch=batch, micro_batches=micro_batches)


def deployer(system: str, model: str) -> Build:
    """Return what runs a model with a batch by a system."""
    machine, micro_batches = load_topology(MACHINE), MICRO_BATCHES if system == "1f1b" else 1

    def deploy(batch: int) -> SystemProgram:
        if batch < micro_batches:
            raise TooFewSamplesError(f"expected a sample for every micro-batch, found {batch}")
        graph = graph_of(model, batch, micro_batches)
        return SYSTEMS[system].program(SystemRequest(graph, machine, DEVICES))

    return deploy


def row(model: str, system: str, batch: int | None, deployment: SystemProgram | None) -> Row:
    """Return samples per second on both variants of the machine, or that no batch fits."""
    cell: Row = {"model": model, "system": system, "batch": batch}
    if deployment is None or deployment.samples is None:
        return cell
    seconds = interpret(deployment.program, deployment.machine).seconds
    alone = not deployment.program.bytes.any()
    other = seconds if alone else interpret(deployment.program, _halves(deployment)).seconds
    worker = max(deployment.program.workers, key=lambda program: program.arena_bytes)
    return cell | {
        "samples": deployment.samples,
        "seconds": seconds,
        "samples_per_s": deployment.samples / seconds,
        "halves_samples_per_s": deployment.samples / other,
        "arena_bytes": worker.arena_bytes,
        "moved_bytes": int(deployment.program.bytes.sum()),
    }


def _halves(deployment: SystemProgram) -> Machine:
    machine = load_topology(HALVES)
    return with_host_memory(machine, DEVICES) if deployment.helpers else machine


def fastest(deploy: Build, start: int, most: int) -> Iterator[tuple[int, SystemProgram, float]]:
    """Yield batches that double from `start` to `most`, with samples per second, until these fall or nothing fits."""
    batch, best = start, 0.0
    while batch <= most:
        try:
            deployment = deploy(batch)
        except NoRoomError:
            return
        rate = (deployment.samples or 0) / interpret(deployment.program, deployment.machine).seconds
        yield batch, deployment, rate
        if rate < best:
            return
        batch, best = 2 * batch, rate


def best(
    system: str, deploy: Build, start: int, ideal_batch: int
) -> tuple[int | None, SystemProgram | None, dict[str, Any]]:
    """Return the batch that a system is given, what it makes of it, and what else was tried."""
    if system == "swapping":
        tried = list(fastest(deploy, max(1, start // 2), ideal_batch))
        batch, deployment, _ = max(tried, key=lambda attempt: attempt[2], default=(None, None, 0.0))
        return batch, deployment, {"tried": {str(size): rate for size, _, rate in tried}}
    try:
        return *largest_batch(deploy), {}
    except NoRoomError:
        return None, None, {}


def measured(models: Sequence[str], ideal_batch: int, first: int, systems: Sequence[str]) -> list[Row]:
    """Return a row for every system and model, the systems side by side on all cores.

    Of models, each needs about as much memory as the one before, or more: the search for a batch begins with `first`,
    of a replica with its share, and later where that before ended.
    """
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        # Swapping tries orders, windows and batches.
        longest_first = sorted(systems, key=lambda system: system != "swapping")
        rows = {system: pool.submit(_of_system, system, models, ideal_batch, first) for system in longest_first}
        return [row for system in systems for row in rows[system].result()]


def _of_system(system: str, models: Sequence[str], ideal_batch: int, first: int) -> list[Row]:
    start, rows = first // DEVICES if SYSTEMS[system].batch_per_device else first, []
    for model in models:
        rows.append(_measured(model, system, start, ideal_batch))
        start = rows[-1]["batch"] or DEVICES
    return rows


def _measured(model: str, system: str, start: int, ideal_batch: int) -> Row:
    deploy = deployer(system, model)
    if system == "ideal":
        return row(model, system, ideal_batch, deploy(ideal_batch))
    batch, deployment, tried = best(system, deploy, start, ideal_batch)
    return row(model, system, batch, deployment) | tried
