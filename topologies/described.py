"""Machines in a line: `8 x h100`, or `32 x 8 x h100, 400G`: nodes, devices of a node, their type, Gbit/s an adapter.

A name under which a machine is sold, as in `p5.48xlarge` or `p5.48xlarge-nodes-4`, stands for a line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from msgspec.structs import replace

from tensor_partitioner.display import nearest
from topologies.errors import TopologyError
from topologies.library import FOLDER, MACHINES, available, device_names, device_type
from topologies.reading import read_record
from topologies.schema import (
    DeviceEntry,
    LinkEntry,
    LinkType,
    NodeEntry,
    SoldMachine,
    SoldMachinesFile,
    SwitchEntry,
    TopologyFile,
)

LINE = re.compile(
    r"(?:(?P<nodes>[1-9]\d{0,4}) ?x ?)?(?P<count>[1-9]\d{0,3}) ?x ?(?P<type>[a-z][\w-]*)"
    r"(?:, ?(?P<rate>[1-9]\d{0,4}) ?g(?:bps|bit/s|b/s)?)?",
    re.IGNORECASE,
)

USUAL_RATE = {"pcie3": 100, "pcie4": 200, "pcie5": 400}
"""Gbit/s of the adapter that a slot is made for, where nobody says which there is."""

BYTES_PER_GBIT = 0.12e9
"""What 1 Gbit/s of an adapter carries in bytes per second, as in the package's types of links."""

NETWORK_LATENCY_S = 7.0e-6
SLOTS = dict.fromkeys(("nvlink4", "nvlink5", "xgmi-mi300x"), "pcie5x16")
"""What devices of a usual node are plugged into, by the generation of their NVLinks; all others into PCIe 4."""

SLOT, BETWEEN_SOCKETS = "pcie4x16", "amd-infinity-fabric"


SOLD = re.compile(r"(.+?)(?:-nodes-([1-9]\d{0,4}))?")


@cache
def sold() -> Mapping[str, SoldMachine]:
    """Return the machines by the names under which they are sold."""
    return {machine.name: machine for machine in read_record(FOLDER / "sold.yaml", SoldMachinesFile).sold}


def line_of(name: str) -> str:
    """Return the line that a name stands for, or the name where it is none under which a machine is sold."""
    match = SOLD.fullmatch(name.strip())
    if match is None or (machine := sold().get(match[1])) is None:
        return name.strip()
    return machine.node if match[2] is None else f"{match[2]} x {machine.node}, {machine.gbit_per_s}G"


def is_described(name: str) -> bool:
    """Tell if a name describes a machine in a line."""
    return LINE.fullmatch(line_of(name)) is not None


def described(name: str) -> TopologyFile:
    """Return the machine of a line; a TopologyError for a type of device that there is none of.

    Devices have their NVLinks to a switch, and an adapter each; without NVLinks they share two sockets, and one. The
    network does not block.
    """
    match = LINE.fullmatch(line_of(name))
    assert match is not None
    device, count = _device(match["type"].lower()), int(match["count"])
    if match["nodes"] is None and match["rate"]:
        raise TopologyError(f"{name}: expected several nodes with the rate of their network, as in 2 x {name}")
    own = _own_node(device, count)
    if match["nodes"] is None:
        return usual_node(device, count) if own is None else read_record(MACHINES / f"{own}.yaml", TopologyFile)
    rate = float(match["rate"] or USUAL_RATE[_slot(device)[:5]])
    adapter = LinkType(
        name="adapter", bandwidth_bytes_per_s=rate * BYTES_PER_GBIT, direction="each", latency_s=NETWORK_LATENCY_S
    )
    several = count > 1 and (own is not None or device_type(device).nvlinks is not None)
    return TopologyFile(
        format="topology/2",
        name=name,
        description=f"{name}: nodes of a usual kind on a network that does not block",
        link_types=(adapter,),
        nodes=(NodeEntry(name=f"node*{match['nodes']}", machine=own or f"{count} x {device}"),),
        switches=(SwitchEntry(name="network"),),
        links=(
            LinkEntry(ends=(f"node*{match['nodes']}/nic{f'*{count}' if several else '0'}", "network"), type="adapter"),
        ),
        collectives=any_family().collectives,
    )


USUAL_COUNT = 8
MESHED = "xgmi-mi300x"
"""Links that join every two of a platform's devices."""


def commonness(device: str) -> tuple[bool, bool, float]:
    """Order types of devices of one name: in a socket, in a machine of the package, with more memory."""
    return "sxm" in device, _own_node(device, USUAL_COUNT) is not None, device_type(device).memory_bytes or 0.0


def _device(text: str) -> str:
    """Return the type of device that a name means, of several that begin so the commonest."""
    fitting = [name for name in device_names() if name == text] or [
        name for name in device_names() if name.startswith(f"{text}-")
    ]
    if not fitting:
        hint = nearest(text, device_names())
        raise TopologyError(f"expected a type of device ({', '.join(device_names())}), found {text!r}{hint}")
    return max(fitting, key=commonness)


@cache
def _own_node(device: str, count: int) -> str | None:
    """Return the package's machine that has so many of these devices, each with an adapter, if there is one."""
    for name in available():
        file = None if name.endswith("-K") else read_record(MACHINES / f"{name}.yaml", TopologyFile)
        devices = [] if file is None else [(entry.name, entry.type) for entry in file.devices]
        adapters = () if file is None else file.switches
        if devices == [(f"gpu*{count}", device)] and any(switch.name == f"nic*{count}" for switch in adapters):
            return name
    return None


@cache
def any_family() -> TopologyFile:
    """Return the family whose collectives those of any nodes are taken to be like."""
    return read_record(MACHINES / "hgx-h100-nodes-K.yaml", TopologyFile)


def _slot(device: str) -> str:
    links = device_type(device).nvlinks
    return SLOT if links is None else SLOTS.get(links.direct, SLOT)


def usual_node(device: str, count: int) -> TopologyFile:
    """Return a box of such devices: on a switch by their NVLinks where they have some, else on two sockets.

    With a switch of NVLinks every device has a network adapter of its own, else all share one.
    """
    spec, slot = device_type(device), _slot(device)
    if spec.nvlinks is not None and spec.nvlinks.direct == MESHED and count == USUAL_COUNT:
        platform = read_record(MACHINES / "mi300x-platform.yaml", TopologyFile)
        return replace(platform, devices=(DeviceEntry(name=platform.devices[0].name, type=device),))
    uplink = f"{slot}-uplink"
    gpus, nics, slots = (f"{name}{0 if count == 1 else f'*{count}'}" for name in ("gpu", "nic", "plx"))
    names, links = [slots, "cpu0", nics], [(gpus, slots, slot, 1), (slots, "cpu0", uplink, 1), (nics, slots, uplink, 1)]
    if count > 1 and spec.nvlinks is not None:
        names.append("nvswitch")
        links.append((gpus, "nvswitch", spec.nvlinks.switched, spec.nvlinks.count))
    elif count > 1:
        two = count > 2 and count % 2 == 0
        names = ["cpu*2" if two else "cpu0", "nic0"]
        links = [(gpus, names[0], slot, 1), ("nic0", "cpu0", uplink, 1)]
        links += [("cpu0", "cpu1", BETWEEN_SOCKETS, 1)] if two else []
    return TopologyFile(
        format="topology/2",
        name="box",
        description=f"{count} x {device}",
        devices=(DeviceEntry(name=gpus, type=device),),
        switches=tuple(SwitchEntry(name=name) for name in names),
        links=tuple(LinkEntry(ends=(end, other), type=kind, count=many) for end, other, kind, many in links),
    )
