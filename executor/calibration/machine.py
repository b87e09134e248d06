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
class Findings:
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


def topology_text(found: Findings, description: str, date: str) -> str:
    """Write the topology file."""
    latency_s, bandwidth, half_bytes = message_line(found.hardware.messages_s)
    link = LinkType(
        name="messages",
        bandwidth_bytes_per_s=bandwidth,
        direction="each",
        latency_s=latency_s / TWICE,
        half_bandwidth_bytes=half_bytes,
    )
    several = found.ranks > 1
    number = f"*{found.ranks}" if several else "0"
    file = TopologyFile(
        format=FORMAT,
        name=platform.node(),
        description=description,
        device_types=(_rank_type(found, date),),
        link_types=(link,) if several else (),
        devices=(DeviceEntry(name=f"rank{number}", type="rank", processor="processor", memory="memory"),),
        processors=(ProcessorEntry(name="processor", cores=max(found.hardware.cores, float(found.threads))),),
        memories=(
            MemoryEntry(
                name="memory",
                memory_bytes=float(found.hardware.memory_bytes),
                memory_bandwidth_bytes_per_s=found.hardware.memory_bytes_per_s * found.ranks,
            ),
        ),
        switches=(SwitchEntry(name="host"),) if several else (),
        links=(LinkEntry(ends=(f"rank{number}", "host"), type="messages"),) if several else (),
    )
    return blocks_of(file)


def _rank_type(found: Findings, date: str) -> DeviceSpec:
    hardware = found.hardware
    products = hardware.products_flop_per_s
    peak = products["float32"]
    shares = {name: _share(found, name, peak) for name in Efficiency.__struct_fields__}
    return DeviceSpec(
        name="rank",
        peak_flop_per_s=Peak(**products, float16=peak, bfloat16=peak),  # 16 bits are computed in 32
        memory_bandwidth_bytes_per_s=hardware.memory_bytes_per_s,
        efficiency=Efficiency(**shares),
        launch_latency_s=hardware.call_s,
        reserved_bytes=RESERVED_BYTES,
        cores=float(found.threads),
        measured=Measured(
            date=date,
            ranks=found.ranks,
            threads=found.threads,
            transport=found.transport,
            rounds=found.rounds,
            spread=found.spread,
            call_s=hardware.call_s,
            wake_s=hardware.wake_s,
            waiting_share=hardware.waiting_share,
            memory_alone_bytes_per_s=hardware.memory_alone_bytes_per_s,
            **transfer_costs(found.seconds, found.moved),
            tasks={name: float(f"{value:.4g}") for name, value in found.seconds.items()},
        ),
    )


def _share(found: Findings, category: str, peak: float) -> float:
    """Return the share of the roofline that all measured tasks of a category attain together."""
    ideal = taken = 0.0
    for name, work in found.work.items():
        if work.category == category and name in found.seconds:
            ideal += max(work.operations / peak, work.nbytes / found.hardware.memory_bytes_per_s)
            taken += found.seconds[name]
    return min(1.0, max(LEAST_SHARE, ideal / taken)) if taken else 1.0
