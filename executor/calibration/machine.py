"""From what was measured to figures that also hold for what was not, as a topology file."""

from __future__ import annotations

import platform
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from executor.calibration.hardware import Hardware
from executor.calibration.timing import Timed
from topologies import TransferAmounts
from topologies.reading import blocks_of
from topologies.schema import (
    FORMAT,
    DeviceEntry,
    DeviceSpec,
    Efficiency,
    LinkEntry,
    LinkType,
    Measured,
    MemoryEntry,
    Peak,
    ProcessorEntry,
    SwitchEntry,
    TopologyFile,
    TransferCost,
)

RESERVED_BYTES = 120e6
"""What a rank takes beside its arena before it runs: Python and libraries, as measured."""

LEAST_SHARE = 0.01
TWICE = 2  # a message crosses two links, its rank's and its receiver's


class Job(NamedTuple):
    """The ranks that were measured, the threads of each, and the transport of their messages."""

    ranks: int
    threads: int
    transport: str


def topology_text(job: Job, measured: Hardware, timed: Timed, description: str, date: str) -> str:
    """Write the topology file."""
    latency_s, bandwidth, half_bytes = message_line(measured.messages_s)
    link = LinkType(
        name="messages",
        bandwidth_bytes_per_s=bandwidth,
        direction="each",
        latency_s=latency_s / TWICE,
        half_bandwidth_bytes=half_bytes,
    )
    several = job.ranks > 1
    number = f"*{job.ranks}" if several else "0"
    file = TopologyFile(
        format=FORMAT,
        name=platform.node(),
        description=description,
        device_types=(_rank_type(job, measured, timed, date),),
        link_types=(link,) if several else (),
        devices=(DeviceEntry(name=f"rank{number}", type="rank", processor="processor", memory="memory"),),
        processors=(ProcessorEntry(name="processor", cores=max(measured.cores, float(job.threads))),),
        memories=(
            MemoryEntry(
                name="memory",
                memory_bytes=float(measured.memory_bytes),
                memory_bandwidth_bytes_per_s=measured.memory_bytes_per_s * job.ranks,
            ),
        ),
        switches=(SwitchEntry(name="host"),) if several else (),
        links=(LinkEntry(ends=(f"rank{number}", "host"), type="messages"),) if several else (),
    )
    return blocks_of(file)


def _rank_type(job: Job, hardware: Hardware, timed: Timed, date: str) -> DeviceSpec:
    products = hardware.products_flop_per_s
    peak = products["float32"]
    shares = {name: _share(timed, name, peak, hardware.memory_bytes_per_s) for name in Efficiency.__struct_fields__}
    return DeviceSpec(
        name="rank",
        peak_flop_per_s=Peak(**products, float16=peak, bfloat16=peak),  # 16 bits are computed in 32
        memory_bandwidth_bytes_per_s=hardware.memory_bytes_per_s,
        efficiency=Efficiency(**shares),
        launch_latency_s=hardware.call_s,
        reserved_bytes=RESERVED_BYTES,
        cores=float(job.threads),
        measured=Measured(
            date=date,
            ranks=job.ranks,
            threads=job.threads,
            transport=job.transport,
            rounds=timed.rounds,
            spread=timed.spread,
            call_s=hardware.call_s,
            wake_s=hardware.wake_s,
            waiting_share=hardware.waiting_share,
            memory_alone_bytes_per_s=hardware.memory_alone_bytes_per_s,
            **transfer_costs(timed.seconds, timed.moved),
            tasks={name: float(f"{value:.4g}") for name, value in timed.seconds.items()},
        ),
    )


def _share(timed: Timed, category: str, peak: float, memory_bytes_per_s: float) -> float:
    """Return the share of the roofline that all measured tasks of a category attain together."""
    ideal = taken = 0.0
    for name, work in timed.work.items():
        if work.category == category:
            ideal += max(work.operations / peak, work.nbytes / memory_bytes_per_s)
            taken += timed.seconds[name]
    return min(1.0, max(LEAST_SHARE, ideal / taken)) if taken else 1.0


TRANSFERS = ("send", "post", "fetch", "reduce")
"""The parts of transfers, each with costs of its own."""


def merged(timings: Sequence[Timed]) -> Timed:
    """Return what ranks timed of plans as one: of every task the mean of seconds, of rounds and spread the worst."""
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    for name, value in chain.from_iterable(timing.seconds.items() for timing in timings):
        seconds[name].append(value)
    return Timed(
        {name: statistics.fmean(values) for name, values in seconds.items()},
        dict(chain.from_iterable(timing.moved.items() for timing in timings)),
        dict(chain.from_iterable(timing.work.items() for timing in timings)),
        min(timing.rounds for timing in timings),
        max(timing.spread for timing in timings),
    )


def transfer_costs(
    seconds: Mapping[str, float], moved: Mapping[str, tuple[str, TransferAmounts]]
) -> dict[str, TransferCost]:
    """Fit the costs of every kind of part of a transfer."""
    return {
        kind: _fitted([(amounts, seconds[name]) for name, (part, amounts) in moved.items() if part == kind])
        for kind in TRANSFERS
    }


def _fitted(samples: Sequence[tuple[TransferAmounts, float]]) -> TransferCost:
    """Minimise the sum of squares of relative errors, without negative figures."""
    if not samples:
        return TransferCost()
    times = np.array([max(value, 1e-9) for _, value in samples])
    amounts = np.array([moved.amounts for moved, _ in samples], dtype=np.float64)
    scale = np.maximum(amounts.max(axis=0), 1.0)
    figures, _ = nnls(amounts / scale / times[:, None], np.ones(len(times)))
    return TransferCost(**dict(zip(TransferCost.__struct_fields__, (figures / scale).tolist(), strict=True)))


def message_line(seconds: Mapping[int, float]) -> tuple[float, float, float]:
    """Return latency, bytes per second and n-half of messages from the seconds of several sizes."""
    sizes = sorted(seconds)
    latency_s = seconds[sizes[0]]
    largest = sizes[-1]
    bandwidth = (largest - sizes[0]) / max(seconds[largest] - latency_s, 1e-9)
    beyond = [seconds[size] - latency_s - size / bandwidth for size in sizes[1:-1]]
    return latency_s, bandwidth, max(0.0, statistics.median(beyond)) * bandwidth
