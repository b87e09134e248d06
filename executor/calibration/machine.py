"""What was measured, as a topology file."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass

from executor.calibration.fitting import message_line, transfer_costs
from executor.calibration.hardware import Hardware
from executor.calibration.timing import Work
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
)

RESERVED_BYTES = 120e6
"""What a rank takes beside its arena before it runs: Python and libraries, as measured."""

LEAST_SHARE = 0.01
TWICE = 2  # a message crosses two links, its rank's and its receiver's


@dataclass(frozen=True, slots=True)
class Measurements:
    """Everything measured: seconds of tasks, what parts of transfers move, what compute tasks do, and how well."""

    ranks: int
    threads: int
    transport: str
    hardware: Hardware
    seconds: Mapping[str, float]
    moved: Mapping[str, tuple[str, TransferAmounts]]
    work: Mapping[str, Work]
    rounds: int
    spread: float


def topology_text(measurements: Measurements, description: str, date: str) -> str:
    """Write the topology file."""
    latency_s, bandwidth, half_bytes = message_line(measurements.hardware.messages_s)
    cores = max(measurements.hardware.cores, float(measurements.threads))
    link = LinkType(
        name="messages",
        bandwidth_bytes_per_s=bandwidth,
        direction="each",
        latency_s=latency_s / TWICE,
        half_bandwidth_bytes=half_bytes,
    )
    several = measurements.ranks > 1
    number = f"*{measurements.ranks}" if several else "0"
    file = TopologyFile(
        format=FORMAT,
        name=platform.node(),
        description=description,
        device_types=(_rank_type(measurements, date),),
        link_types=(link,) if several else (),
        devices=(DeviceEntry(name=f"rank{number}", type="rank", processor="processor", memory="memory"),),
        processors=(ProcessorEntry(name="processor", cores=cores),),
        memories=(
            MemoryEntry(
                name="memory",
                memory_bytes=float(measurements.hardware.memory_bytes),
                memory_bandwidth_bytes_per_s=measurements.hardware.memory_bytes_per_s * measurements.ranks,
            ),
        ),
        switches=(SwitchEntry(name="host"),) if several else (),
        links=(LinkEntry(ends=(f"rank{number}", "host"), type="messages"),) if several else (),
    )
    return blocks_of(file)


def _rank_type(measurements: Measurements, date: str) -> DeviceSpec:
    hardware = measurements.hardware
    products = hardware.products_flop_per_s
    peak = products["float32"]
    shares = {name: _share(measurements, name, peak) for name in Efficiency.__struct_fields__}
    return DeviceSpec(
        name="rank",
        peak_flop_per_s=Peak(**products, float16=peak, bfloat16=peak),  # 16 bits are computed in 32
        memory_bandwidth_bytes_per_s=hardware.memory_bytes_per_s,
        efficiency=Efficiency(**shares),
        launch_latency_s=hardware.call_s,
        reserved_bytes=RESERVED_BYTES,
        cores=float(measurements.threads),
        measured=Measured(
            date=date,
            ranks=measurements.ranks,
            threads=measurements.threads,
            transport=measurements.transport,
            rounds=measurements.rounds,
            spread=measurements.spread,
            call_s=hardware.call_s,
            wake_s=hardware.wake_s,
            waiting_share=hardware.waiting_share,
            memory_alone_bytes_per_s=hardware.memory_alone_bytes_per_s,
            **transfer_costs(measurements.seconds, measurements.moved),
            tasks={name: float(f"{value:.4g}") for name, value in measurements.seconds.items()},
        ),
    )


def _share(measurements: Measurements, category: str, peak: float) -> float:
    """Return the share of the roofline that all measured tasks of a category attain together."""
    ideal = taken = 0.0
    for name, work in measurements.work.items():
        if work.category == category and name in measurements.seconds:
            ideal += max(work.operations / peak, work.nbytes / measurements.hardware.memory_bytes_per_s)
            taken += measurements.seconds[name]
    return min(1.0, max(LEAST_SHARE, ideal / taken)) if taken else 1.0
