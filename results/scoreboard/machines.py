"""The machine of a row: one of the package's by name, or by rule from the type and number of its GPUs."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from results.scoreboard.cells import UNITS, SetError, read_number
from results.scoreboard.gpus import find_device
from results.scoreboard.row import Row
from simulator.projection.network import NODES_BUILT, Cluster, cluster, cluster_of
from topologies.build import with_limit
from topologies.load import BYTES_PER_GBIT, NETWORK_LATENCY_S, any_family, parse_topology, usual_node
from topologies.reading import MACHINES, available, encode_record, link_types, read_record
from topologies.schema import (
    LinkEntry,
    LinkType,
    NodeEntry,
    SwitchEntry,
    TopologyError,
    TopologyFile,
)

USUAL_NODE = 8
"""Devices of a node that nobody describes."""

USUAL_SLOT = "pcie4"
USUAL_NETWORK = {"pcie3": "ib-edr", "pcie4": "ib-hdr", "pcie5": "ib-ndr"}
"""The adapter that a slot is made for, where nobody says which there is."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """Nodes of one kind on a network that does not block, every adapter by a link of this type."""

    node: str
    count: int
    network: str


def machine_of(row: Row, devices: int, folder: Path) -> tuple[Cluster, str]:
    """Return a row's machine, with so many devices at least, and what it is called. Raises SetError for none.

    Of many nodes a few are built, which tell what all do.
    """
    try:
        if row.machine is not None:
            machine, name = _named(row.machine, devices, row.network, folder)
        elif row.gpu is not None:
            machine, name = _of_type(find_device(row.gpu), devices, row.per_node, row.network)
        else:
            raise SetError("expected a machine or a type of GPU, found neither")
        if row.power_limit_w is None:
            return machine, name
        return _with_limit(machine, row.power_limit_w), f"{name}, {row.power_limit_w:g} W"
    except TopologyError as error:
        raise SetError(str(error)) from error


@cache
def _with_limit(machine: Cluster, limit_w: float) -> Cluster:
    """Return a cluster whose devices may draw so many watts; raises TopologyError where nobody knows what they draw."""
    limited = tuple(replace(device, spec=with_limit(device.spec, limit_w)) for device in machine.built.devices)
    return replace(machine, built=replace(machine.built, devices=limited))


def _named(name: str, devices: int, network: str | None, folder: Path) -> tuple[Cluster, str]:
    if name.endswith("-K"):
        nodes = math.ceil(devices / _loaded(f"{name[:-1]}1").devices)
        return _loaded(f"{name[:-1]}{nodes}"), f"{name[:-1]}{nodes}"
    path = folder / name
    full = str(path) if path.is_file() else name
    machine = _loaded(full)
    if machine.devices >= devices:
        return machine, name
    return _cluster(full, machine.devices, devices, network)


def _of_type(device: str, devices: int, per_node: int | None, network: str | None) -> tuple[Cluster, str]:
    """Return the package's node of such devices, else a usual one, as often as there must be; many have adapters."""
    nodes = [name for name, kind, count in _nodes() if kind == device and per_node in {None, count}]
    if nodes:
        node = min(nodes, key=lambda name: (_loaded(name).devices, name))
        if devices <= (count := _loaded(node).devices):
            return _loaded(node), node
        if _adapters(node):
            return _cluster(node, count, devices, network)
    count = per_node or min(USUAL_NODE, devices)
    if devices <= count:
        return _box(device, count), f"{count} x {device}"
    machine, name = _of_usual(device, count, devices, network)
    return machine, f"{name.partition(' ')[0]} x {count} x {device},{name.rpartition(',')[2]}"


@cache
def _box(device: str, count: int) -> Cluster:
    return cluster_of(parse_topology(encode_record(usual_node(device, count)), "box"))


@cache
def _of_usual(device: str, count: int, devices: int, network: str | None) -> tuple[Cluster, str]:
    """Return a cluster of usual nodes, which are read from a file as others are."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "box.yaml")
        path.write_text(encode_record(usual_node(device, count)))
        return _cluster(str(path), count, devices, network)


def _cluster(node: str, per_node: int, devices: int, network: str | None) -> tuple[Cluster, str]:
    nodes = Nodes(node, math.ceil(devices / per_node), _link_of(node, per_node, network))
    return _built(nodes), f"{nodes.count} x {Path(node).stem}, {network or nodes.network}"


@cache
def _loaded(name: str) -> Cluster:
    return cluster(name)


@cache
def _nodes() -> tuple[tuple[str, str, int], ...]:
    """Return the package's machines of one node that a cluster may be made of: name, type and number of devices."""
    return tuple(_single_nodes())


def _single_nodes() -> Iterator[tuple[str, str, int]]:
    for name in available():
        if name.endswith("-K"):
            continue
        devices = _loaded(name).built.devices
        kinds = {device.spec.name for device in devices}
        if len(kinds) == 1:
            yield name, kinds.pop(), len(devices)


def _family_of(node: str) -> TopologyFile | None:
    """Return the package's family of clusters that is made of this node, if there is one."""
    for name in available():
        if name.endswith("-K"):
            file = read_record(MACHINES / f"{name}.yaml", TopologyFile)
            if any(part.machine == node for part in file.nodes):
                return file
    return None


def _adapters(node: str) -> int:
    return sum(name.startswith("nic") for name in _loaded(node).built.switches)


def _slot_of_adapters(node: str) -> str:
    machine = _loaded(node).built
    slots = (link.type[:5] for link in machine.links if any(end.startswith("nic") for end in link.ends))
    return next((slot for slot in slots if slot in USUAL_NETWORK), USUAL_SLOT)


def _link_of(node: str, per_node: int, network: str | None) -> str:
    """Return a type of link, or Gbit/s of each adapter, for a network that is said by either or not at all."""
    if network is None:
        family = _family_of(node)
        links = [link.type for link in family.links if "/nic" in "".join(link.ends)] if family else []
        return (links[0] if links else None) or USUAL_NETWORK[_slot_of_adapters(node)]
    if network in link_types():
        return network
    number, _ = read_number(network, {"gbit/s": 1.0, "gbps": 1.0, "gb/s": 8.0, **dict.fromkeys(UNITS["flop/s"], 0.0)})
    return f"{number * per_node / max(1, _adapters(node)):g}"


@cache
def _built(nodes: Nodes) -> Cluster:
    """Return the machine; collectives between nodes are the family's of this node, else those of any."""
    adapters, built = _adapters(nodes.node), min(nodes.count, NODES_BUILT)
    if not adapters:
        raise SetError(f"{nodes.node}: expected a node with network adapters (nic0 ...), found none")
    family = _family_of(nodes.node)
    ends = (f"node*{built}/nic{f'*{adapters}' if adapters > 1 else '0'}", "network")
    known = nodes.network in link_types()
    rate = 0.0 if known else float(nodes.network) * BYTES_PER_GBIT
    own = LinkType(name="adapter", bandwidth_bytes_per_s=rate, direction="each", latency_s=NETWORK_LATENCY_S)
    file = TopologyFile(
        format="topology/2",
        name="cluster",
        description=f"{built} x {nodes.node} on a network that does not block",
        link_types=() if known else (own,),
        nodes=(NodeEntry(name=f"node*{built}", machine=nodes.node),),
        switches=(SwitchEntry(name="network"),),
        links=(LinkEntry(ends=ends, type=nodes.network if known else "adapter"),),
        collectives=(family or any_family()).collectives,
    )
    machine = parse_topology(encode_record(file), "cluster")
    per_node = len(machine.devices) // built
    return Cluster(f"{nodes.count} x {Path(nodes.node).stem}", machine, nodes.count * per_node, per_node)
