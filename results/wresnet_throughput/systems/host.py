"""A machine with its host's memory as two more devices: one that data is moved to, one that it is moved from."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from topologies.machine import CATEGORIES, Device, Link, Machine, Memory, Resource
from topologies.schema import DeviceSpec, Efficiency, Peak, TopologyError
from topologies.traffic import Routes

HOST = "host memory"
TO_HOST, FROM_HOST = f"{HOST}, in", f"{HOST}, out"
UNLIMITED = 1e18
"""Bytes per second of what is not limited: the host's memory, and its links to the processors; those to the devices
are what the machine's file says."""

HOST_SPEC = DeviceSpec(
    name="host",
    peak_flop_per_s=Peak(float32=1.0),
    memory_bandwidth_bytes_per_s=UNLIMITED,
    efficiency=Efficiency(**dict.fromkeys(CATEGORIES, 1.0)),
    launch_latency_s=0.0,
    cores=0.0,
)


def with_host_memory(machine: Machine, devices: int) -> Machine:
    """Return the machine of the first `devices` devices and, after them, what takes in and gives out the host's memory.

    Both share that memory. Every device reaches it through the nearest switch called cpu, cpu0, ...; a TopologyError
    where there is none.
    """
    machine.require_devices(devices)
    processors = [name for name in machine.switches if name.rpartition("/")[2].startswith("cpu")]
    if not processors:
        raise TopologyError(
            f"{machine.name}: expected a switch called cpu, behind which is the host's memory, found none"
        )
    kept = tuple(
        replace(memory, devices=tuple(number for number in memory.devices if number < devices))
        for memory in machine.memories
    )
    resources = [*machine.resources, Resource(HOST, "memory", UNLIMITED)]
    hosts = tuple(Device(name, HOST_SPEC, len(kept)) for name in (TO_HOST, FROM_HOST))
    memories = (*kept, Memory(HOST, UNLIMITED, len(resources) - 1, (devices, devices + 1)))
    links = [*machine.links]
    for end, name in product((TO_HOST, FROM_HOST), processors):
        links.append(Link(f"{end}-{name}", (end, name), UNLIMITED, 0.0, len(resources), len(resources)))
        resources.append(Resource(f"{end}-{name}", "bus", UNLIMITED))
    routes = Routes((*machine.devices[:devices], *hosts), memories, links, frozenset(machine.switches), {})
    return replace(
        machine,
        devices=(*machine.devices[:devices], *hosts),
        memories=memories,
        links=tuple(links),
        resources=tuple(resources),
        routes=routes,
    )
