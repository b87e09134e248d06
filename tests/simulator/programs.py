"""Programs and machines written by hand, with figures that make the arithmetic easy."""

from dataclasses import replace

import numpy as np

from planner.program.tasks import (
    Buffer,
    Compute,
    Kernel,
    LocalCopy,
    Message,
    Piece,
    Program,
    Receive,
    Send,
    SlicedCall,
    Wait,
    WorkerProgram,
)
from topologies import Machine, parse_topology

INSTANT = 1e24  # bytes per second: memory so fast that copies take no time


def device_type(name: str = "d", **figures: object) -> str:
    """The only type of devices of a file: 100 flop/s, 1000 bytes a second, and no launches unless figures say so."""
    shares = "{matmul: 1, convolution: 1, reduction: 1, elementwise: 1, other: 1}"
    entries = {"peak_flop_per_s": "{float32: 100}", "memory_bandwidth_bytes_per_s": 1000, "efficiency": shares}
    entries |= {"launch_latency_s": 0, **figures}
    return f"device_types: [{{name: {name}, {', '.join(f'{key}: {value}' for key, value in entries.items())}}}]\n"


def star(
    devices: int = 2,
    *,
    link: float = 10,
    latency_s: float = 0,
    memory: float = INSTANT,
    launch_s: float = 0,
    host_s: float = 0,
) -> Machine:
    """Devices of 100 flop/s and 1000 bytes around a switch, `link` bytes/s each way."""
    kind = device_type(
        memory_bytes=1000,
        memory_bandwidth_bytes_per_s=memory,
        efficiency="{matmul: 0.5, convolution: 1, reduction: 1, elementwise: 1, other: 1}",
        launch_latency_s=launch_s,
        host_launch_s=host_s,
    )
    return parse_topology(f"""
format: topology/2
name: star
description: devices around a switch
{kind}
devices: [{{name: d*{devices}, type: d}}]
switches: [{{name: s}}]
links: [{{ends: [d*{devices}, s], bandwidth_bytes_per_s: {link}, direction: each, latency_s: {latency_s}}}]
""")


def changed(machine: Machine, *, streams: bool = False, half_bandwidth_bytes: float = 0) -> Machine:
    """A machine whose devices stream messages, and whose messages cost their routes so many bytes more."""
    return replace(
        machine,
        devices=tuple(device.changed(streams_messages=streams) for device in machine.devices),
        routes={
            ends: replace(route, half_bandwidth_bytes=half_bandwidth_bytes) for ends, route in machine.routes.items()
        },
    )


def shared_processor(ranks: int, cores: float, *, memory: float = INSTANT) -> Machine:
    """Ranks of one core each (100 flop/s, 10 bytes/s of memory alone) on one processor and one memory."""
    return parse_topology(f"""
format: topology/2
name: host
description: ranks on one host
{device_type("core", memory_bandwidth_bytes_per_s=10)}
processors: [{{name: cpu, cores: {cores}}}]
memories: [{{name: dram, memory_bytes: 1000, memory_bandwidth_bytes_per_s: {memory}}}]
devices: [{{name: r*{ranks}, type: core, processor: cpu, memory: dram}}]
switches: [{{name: host}}]
links: [{{ends: [r*{ranks}, host], bandwidth_bytes_per_s: 100, direction: each, latency_s: 0}}]
""")


def compute(operations: float, touched_bytes: int = 0, *, category: str = "other", calls: int = 1) -> Compute:
    call = SlicedCall((), (), {}, (), None)
    return Compute((Kernel("node", "op", {}, (call,) * calls),), category, operations, touched_bytes)


def messages(sizes: dict[int, int]) -> tuple[Message, ...]:
    return tuple(Message(peer, (), nbytes, 0) for peer, nbytes in sizes.items())


def send(transfer: int, sizes: dict[int, int] | None = None) -> Send:
    return Send(transfer, 0, None, messages(sizes or {}))


def fetch(transfer: int, sizes: dict[int, int] | None = None, *, local: int = 0) -> Receive:
    """A fetch into buffer 0; `local` elements are copied from the worker's own."""
    return Receive(transfer, 0, None, messages(sizes or {}), local_copies(local))


def reduce(transfer: int, sizes: dict[int, int] | None = None, *, local: int = 0) -> Receive:
    return Receive(transfer, 0, None, messages(sizes or {}), local_copies(local), "Sum")


def local_copies(elements: int) -> tuple[LocalCopy, ...]:
    return (LocalCopy(0, (Piece((), (), elements),)),) if elements else ()


def wait(transfer: int) -> Wait:
    return Wait(transfer)


def buffer(name: str, nbytes: int, first: int, last: int, *, offset: int = 0, kind: str = "tensor") -> Buffer:
    return Buffer(name, (nbytes // 4,), "float32", nbytes, offset, first, last, kind)


def program(*tasks: list, buffers: dict[int, list[Buffer]] | None = None, arena: int = 0) -> Program:
    """A program of one list of tasks per worker; buffer 0 of a worker without buffers has 40 bytes."""
    k = len(tasks)
    sent = np.zeros((k, k), dtype=np.int64)
    for u, own in enumerate(tasks):
        for task in own:
            if isinstance(task, Send):
                for message in task.messages:
                    sent[u, message.peer] += message.nbytes
    given = buffers or {}
    workers = tuple(
        WorkerProgram(u, tuple(own), tuple(given.get(u, [buffer("b", 40, 0, 0)])), arena) for u, own in enumerate(tasks)
    )
    return Program((k,), workers, {}, {}, sent)


def peak_live_bytes(storages):
    """The most bytes that are held at one position."""
    change = np.zeros(max((storage.last for storage in storages), default=0) + 2, dtype=np.int64)
    for storage in storages:
        change[storage.first] += storage.nbytes
        change[storage.last + 1] -= storage.nbytes
    return int(change.cumsum().max())
