"""A machine as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from rich.table import Table

from tensor_partitioner import display
from tensor_partitioner.display import facts, quantity, seconds, table
from topologies.machine import Device, Link, Machine, Route

LISTED = 40  # devices or links that a table has rows for
SQUARE = 16  # devices that a matrix has rows for


@display.tables.register
def tables(machine: Machine) -> tuple[Table, ...]:
    """Show a machine: what it is, its devices, and its links; of a large one, as many of each as a page holds."""
    links = [
        [
            link.name,
            " - ".join(link.ends),
            _kind(link.type, link.count),
            *_rates(link.bandwidth_bytes_per_s, link.latency_s),
        ]
        for link in machine.links[:LISTED]
    ]
    return (
        facts(f"machine {machine.name}", _facts(machine)),
        table(
            _title("devices", len(machine.devices)),
            ["device", "type", "memory", "size", "peak"],
            [_device(machine, device) for device in machine.devices[:LISTED]],
        ),
        table(_title("links", len(machine.links)), ["link", "between", "type", "bandwidth", "latency"], links),
    )


def route_tables(machine: Machine, source: int, target: int) -> tuple[Table, ...]:
    """Show how a message goes from one device to another: every link, and what it gets of them together."""
    route = machine.route(source, target)
    hops = [
        [f"{start} - {end}", _kind(link.type, link.count), *_rates(link.bandwidth_bytes_per_s, link.latency_s)]
        for start, end, link in _passed(machine, route)
    ]
    together = [
        ("bandwidth of one message alone", quantity(machine.bandwidth_bytes_per_s(source, target), "B/s")),
        ("latency", seconds(route.latency_s)),
        ("half of the bandwidth at", quantity(route.half_bandwidth_bytes, "B")),
    ]
    title = f"{route.nodes[0]} to {route.nodes[-1]}"
    return table(title, ["link", "type", "bandwidth", "latency"], hops), facts("together", together)


def _passed(machine: Machine, route: Route) -> Iterator[tuple[str, str, Link]]:
    """Yield the links of a route in order; of links side by side, the one that it uses."""
    used = {resource for resource, _ in route.uses}
    for start, end in pairwise(route.nodes):
        for link in machine.links:
            if {link.forward, link.backward} & used and set(link.ends) == {start, end}:
                yield start, end, link
                break


def matrices(machine: Machine) -> tuple[Table, ...]:
    """Show bandwidth and latency between any two devices; of a large machine, from the first device to each."""
    if len(machine.devices) > SQUARE:
        return (_kinds_of_routes(machine),)
    names = [device.name for device in machine.devices]

    def matrix(title: str, figure: Callable[[int, int], str]) -> Table:
        rows = [[name, *("-" if u == w else figure(u, w) for w in range(len(names)))] for u, name in enumerate(names)]
        return table(f"{title}, from row to column", ["", *names], rows)

    return (
        matrix("bandwidth of one message alone", lambda u, w: quantity(machine.bandwidth_bytes_per_s(u, w), "B/s")),
        matrix("latency", lambda u, w: seconds(machine.route(u, w).latency_s)),
    )


def _kinds_of_routes(machine: Machine) -> Table:
    kinds: dict[tuple[float, float], list[int]] = {}
    for target in range(1, len(machine.devices)):
        rates = (machine.bandwidth_bytes_per_s(0, target), machine.route(0, target).latency_s)
        kinds.setdefault(rates, []).append(target)
    rows = [
        [
            machine.devices[targets[0]].name,
            str(len(targets)),
            *_rates(*rates),
            " - ".join(machine.route(0, targets[0]).nodes),
        ]
        for rates, targets in kinds.items()
    ]
    first = machine.devices[0].name
    return table(f"from {first}, one message alone", ["to", "alike", "bandwidth", "latency", "route"], rows)


def _rates(bandwidth_bytes_per_s: float, latency_s: float) -> tuple[str, str]:
    return quantity(bandwidth_bytes_per_s, "B/s"), seconds(latency_s)


def _kind(name: str, count: int) -> str:
    return f"{count} x {name}" if count > 1 else name


def _title(what: str, count: int) -> str:
    return what if count <= LISTED else f"{what}, the first {LISTED} of {count}"


def _device(machine: Machine, device: Device) -> list[str]:
    memory = machine.memories[device.memory]
    peak = quantity(max(device.spec.peak_flop_per_s.by_dtype().values()), "flop/s")
    return [device.name, device.spec.name, memory.name, quantity(memory.nbytes, "B"), peak]


def _facts(machine: Machine) -> Iterator[tuple[str, str]]:
    yield "what it is", machine.description
    yield "devices", str(len(machine.devices))
    yield "memories", str(len(machine.memories))
    yield "links", str(len(machine.links))
