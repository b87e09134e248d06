"""Turn measurements into a topology file, with figures that also cover what was not measured."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from msgspec import structs
from scipy.optimize import nnls

from executor.calibration.bench import LEAST_SHARE, Hardware, collective_entries
from executor.calibration.timing import DeviceFigures, Timed, means
from topologies import TransferAmounts
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
"""Bytes that a rank uses besides its arena: Python and libraries, as measured."""

TWICE = 2  # a message crosses two links: its sender's and its receiver's


class Job(NamedTuple):
    """The measured ranks, the threads of each, and the transport of their messages."""

    ranks: int
    threads: int
    transport: str


class Record(NamedTuple):
    """What the topology file says about the calibration: the job, the hardware in words, and the date."""

    job: Job
    description: str
    date: str


def host_machine(record: Record, hardware: Hardware, timed: Timed) -> TopologyFile:
    """Return the machine of a host whose ranks share processor and memory."""
    job = record.job
    processor = ProcessorEntry(name="processor", cores=max(hardware.cores, float(job.threads)))
    memory = MemoryEntry(
        name="memory",
        memory_bytes=float(hardware.memory_bytes),
        memory_bandwidth_bytes_per_s=hardware.memory_bytes_per_s * job.ranks,
    )
    number = f"*{job.ranks}" if job.ranks > 1 else "0"
    devices = DeviceEntry(name=f"rank{number}", type="rank", processor="processor", memory="memory")
    file = _machine(record, _host_rank(record, hardware, timed), [devices], hardware.messages_s)
    return structs.replace(file, processors=(processor,), memories=(memory,))


def device_machine(
    record: Record, figures: DeviceFigures, peaks: Mapping[str, float], reserved_bytes: int, timed: Timed
) -> TopologyFile:
    """Return the machine of GPUs, each with its own memory or one that several ranks share.

    `peaks` are the flop/s of products by format.
    """
    places = list(dict.fromkeys(figures.places))
    kind = _gpu_rank(record, figures, peaks, reserved_bytes, timed)
    messages_s = {nbytes: _on_the_way_s(figures, nbytes, seconds) for nbytes, seconds in figures.messages_s.items()}
    is_alone = len(places) == record.job.ranks
    entries = [
        DeviceEntry(name=f"rank{rank}", type="rank", memory=None if is_alone else f"memory{places.index(place)}")
        for rank, place in enumerate(figures.places)
    ]
    size_bytes, bandwidth = float(figures.memory_bytes), figures.memory_alone_bytes_per_s
    memories = [
        MemoryEntry(name=f"memory{number}", memory_bytes=size_bytes, memory_bandwidth_bytes_per_s=bandwidth)
        for number in range(0 if is_alone else len(places))
    ]
    kind = structs.replace(kind, memory_bytes=size_bytes if is_alone else None)
    file = _machine(record, kind, entries, messages_s)
    rates = [link.bandwidth_bytes_per_s for link in file.link_types]
    collectives = [entry for rate in rates for entry in collective_entries(figures.collectives, len(entries), rate)]
    return structs.replace(file, memories=tuple(memories), collectives=tuple(collectives))


def _machine(
    record: Record, kind: DeviceSpec, devices: Sequence[DeviceEntry], messages_s: Mapping[int, float]
) -> TopologyFile:
    """Return a machine of equal ranks. If there are several, each has a link for its messages."""
    file = TopologyFile(
        format=FORMAT,
        name=platform.node(),
        description=record.description,
        device_types=(kind,),
        devices=tuple(devices),
    )
    if record.job.ranks == 1:
        return file
    latency_s, bandwidth, half_bytes = message_line(messages_s)
    link = LinkType(
        name="messages",
        bandwidth_bytes_per_s=bandwidth,
        direction="each",
        latency_s=latency_s / TWICE,
        half_bandwidth_bytes=half_bytes,
    )
    links = tuple(LinkEntry(ends=(entry.name, "host"), type="messages") for entry in devices)
    return structs.replace(file, link_types=(link,), switches=(SwitchEntry(name="host"),), links=links)


def _host_rank(record: Record, hardware: Hardware, timed: Timed) -> DeviceSpec:
    products = hardware.products_flop_per_s
    peak = products["float32"]
    costs = {
        "wake_s": hardware.wake_s,
        "waiting_share": hardware.waiting_share,
        "memory_alone_bytes_per_s": hardware.memory_alone_bytes_per_s,
        **transfer_costs(timed.seconds, timed.moved),
    }
    return DeviceSpec(
        name="rank",
        peak_flop_per_s=Peak(**products, float16=peak, bfloat16=peak),  # 16-bit products are computed in 32 bits
        memory_bandwidth_bytes_per_s=hardware.memory_bytes_per_s,
        efficiency=_efficiency(timed, {"float32": peak}, hardware.memory_bytes_per_s),
        launch_latency_s=hardware.call_s,
        reserved_bytes=RESERVED_BYTES,
        cores=float(record.job.threads),
        measured=_measured(record, timed, hardware.call_s, costs),
    )


def _gpu_rank(
    record: Record, figures: DeviceFigures, peaks: Mapping[str, float], reserved_bytes: int, timed: Timed
) -> DeviceSpec:
    costs = {
        "memory_alone_bytes_per_s": figures.memory_alone_bytes_per_s,
        "to_device_bytes_per_s": figures.to_device_bytes_per_s,
        "to_host_bytes_per_s": figures.to_host_bytes_per_s,
    }
    return DeviceSpec(
        name="rank",
        peak_flop_per_s=Peak(**peaks),
        memory_bandwidth_bytes_per_s=figures.memory_bytes_per_s,
        efficiency=_efficiency(timed, peaks, figures.memory_bytes_per_s),
        launch_latency_s=figures.call_s,
        host_launch_s=figures.host_call_s,
        reserved_bytes=float(reserved_bytes),
        measured=_measured(record, timed, figures.call_s, costs),
    )


def _measured(record: Record, timed: Timed, call_s: float, costs: Mapping[str, Any]) -> Measured:
    job = record.job
    return Measured(
        date=record.date,
        ranks=job.ranks,
        threads=job.threads,
        transport=job.transport,
        rounds=timed.rounds,
        spread=timed.spread,
        call_s=call_s,
        **costs,
        tasks={name: float(f"{value:.4g}") for name, value in timed.seconds.items()},
    )


def _on_the_way_s(figures: DeviceFigures, nbytes: int, seconds: float) -> float:
    """Return a message's time on the link, without packing and unpacking, which are separate tasks."""
    copied_s = 2 * (figures.call_s + 2 * nbytes / figures.memory_bytes_per_s)
    return max(seconds - copied_s, LEAST_SHARE * seconds)


def _efficiency(timed: Timed, peaks: Mapping[str, float], memory_bytes_per_s: float) -> Efficiency:
    shares = {name: _share(timed, name, peaks, memory_bytes_per_s) for name in Efficiency.__struct_fields__}
    return Efficiency(**shares)


def _share(timed: Timed, category: str, peaks: Mapping[str, float], memory_bytes_per_s: float) -> float:
    """Return the share of the roofline that all measured tasks of a category attain together.

    Dtypes without a peak use that of float32.
    """
    ideal = taken = 0.0
    for name, work in timed.work.items():
        if work.category == category:
            peak = peaks.get(work.dtype, peaks["float32"])
            ideal += max(work.operations / peak, work.nbytes / memory_bytes_per_s)
            taken += timed.seconds[name]
    return min(1.0, max(LEAST_SHARE, ideal / taken)) if taken else 1.0


TRANSFERS = ("send", "post", "fetch", "reduce")
"""The parts of transfers. Each has its own costs."""


def merged(timings: Sequence[Timed]) -> Timed:
    """Return the timings of several ranks as one: the mean of each task, the fewest rounds, and the largest spread."""
    return Timed(
        means(chain.from_iterable(timing.seconds.items() for timing in timings)),
        dict(chain.from_iterable(timing.moved.items() for timing in timings)),
        dict(chain.from_iterable(timing.work.items() for timing in timings)),
        min(timing.rounds for timing in timings),
        max(timing.spread for timing in timings),
    )


def transfer_costs(
    seconds: Mapping[str, float], moved: Mapping[str, tuple[str, TransferAmounts]]
) -> dict[str, TransferCost]:
    """Fit the costs of each part of a transfer."""
    return {
        kind: _fitted([(amounts, seconds[name]) for name, (part, amounts) in moved.items() if part == kind])
        for kind in TRANSFERS
    }


def _fitted(samples: Sequence[tuple[TransferAmounts, float]]) -> TransferCost:
    """Minimise the squares of relative errors, with non-negative coefficients."""
    if not samples:
        return TransferCost()
    times = np.array([max(value, 1e-9) for _, value in samples])
    amounts = np.array([moved.amounts for moved, _ in samples], dtype=np.float64)
    scale = np.maximum(amounts.max(axis=0), 1.0)
    figures, _ = nnls(amounts / scale / times[:, None], np.ones(len(times)))
    return TransferCost(**dict(zip(TransferCost.__struct_fields__, (figures / scale).tolist(), strict=True)))


def message_line(seconds: Mapping[int, float]) -> tuple[float, float, float]:
    """Return latency (s), bandwidth (bytes/s) and half-bandwidth size (bytes), from the seconds of messages by size."""
    smallest, *between, largest = sorted(seconds)
    latency_s = seconds[smallest]
    bandwidth = (largest - smallest) / max(seconds[largest] - latency_s, 1e-9)
    beyond = [seconds[size] - latency_s - size / bandwidth for size in between]
    return latency_s, bandwidth, max(0.0, statistics.median(beyond)) * bandwidth
