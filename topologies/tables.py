"""A machine as tables."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

import display
from display import facts, quantity, seconds, table
from topologies.machine import Machine


@display.tables.register
def tables(machine: Machine) -> tuple[Table, ...]:
    """Show a machine: what it is, its devices, and its links."""
    devices = [
        [d.name, d.type, machine.memories[d.memory].name, quantity(machine.memories[d.memory].nbytes, "B"),
         quantity(max(d.peak_flop_per_s.values()), "flop/s")]
        for d in machine.devices
    ]  # fmt: skip
    links = [
        [link.name, " - ".join(link.ends), quantity(link.bandwidth_bytes_per_s, "B/s"), seconds(link.latency_s)]
        for link in machine.links
    ]
    return (
        facts(f"machine {machine.name}", _facts(machine)),
        table("devices", ["device", "type", "memory", "size", "peak"], devices),
        table("links", ["link", "between", "bandwidth", "latency"], links),
    )


def _facts(machine: Machine) -> Iterator[tuple[str, str]]:
    yield "what it is", machine.description
    yield "devices", str(len(machine.devices))
    yield "memories", str(len(machine.memories))
    yield "links", str(len(machine.links))
