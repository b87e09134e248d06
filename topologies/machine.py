"""A machine: devices with rooflines, and resources with capacities that traffic and kernels share.

Worker w of a plan runs on device w. `topologies.load` builds and checks machines; this module holds their data.

A plan's steps give a machine levels. The digits of a worker's number are its places in the steps, the first step's
being the most significant; traffic of step i runs between workers whose digits first differ at step i (Tofu, Sec 5.2).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import msgspec

from tensor_partitioner.display import Shown
from topologies.kernels import ALIGNED, Kernel, Rates, attention_s, product_s
from topologies.schema import CollectiveEntry, DeviceSpec, Peak, Products, TopologyError

CATEGORIES = ("matmul", "convolution", "reduction", "elementwise", "other")

HALF_BYTES = 2
ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}

Use = tuple[int, float]  # a resource's index, and the units of it used per unit of progress


def node_of(name: str) -> str:
    """Return the node that contains a device or switch, or "" if there is none."""
    return name.rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class Resource:
    """A shared resource: one direction of a link, a memory's bus, a processor, or a device's copy engines.

    `capacity` is in bytes per second for a "link" or "memory", in cores for a "processor", and a count for "engines".
    """

    name: str
    kind: str
    capacity: float


@dataclass(frozen=True, slots=True)
class Memory:
    """A memory that one or more devices use: its size, its bus, and the indices of its devices."""

    name: str
    nbytes: float
    resource: int
    devices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Device:
    """One device: its own capabilities (`spec`) and the machine's resources that it uses.

    `memory` is an index into the machine's memories. `processor` is a resource, or None if the device has its own.
    `copy_engines` is a resource, or None if the device sends any number of messages at once.
    """

    name: str
    spec: DeviceSpec
    memory: int
    processor: int | None = None
    copy_engines: int | None = None

    def changed(self, **figures: Any) -> Device:
        """Return the device with some figures of its spec replaced."""
        return replace(self, spec=msgspec.structs.replace(self.spec, **figures))

    def peak(self, dtype: str) -> float:
        """Return the peak flop/s of a dtype; integers and bool count as the slowest listed dtype."""
        rate: float | None = getattr(self.spec.peak_flop_per_s, dtype, None)
        if rate is not None:
            return rate
        rates = self.spec.peak_flop_per_s.by_dtype()
        if dtype.startswith("int") or dtype == "bool":
            return min(rates.values())
        listed = ", ".join(sorted(rates))
        raise TopologyError(f"device type {self.spec.name}: expected peak_flop_per_s of {dtype}, found only {listed}")

    def efficiency(self, category: str) -> float:
        """Return the share of the roofline that kernels of a category attain."""
        share: float = getattr(self.spec.efficiency, category)
        return share

    def attained(self, dtype: str) -> float:
        """Return the flop/s that the largest matrix products of a dtype attain."""
        attained = self.spec.attained_flop_per_s
        rate: float | None = None if attained is None else getattr(attained, dtype, None)
        return self.peak(dtype) * self.spec.efficiency.matmul if rate is None else rate

    def with_libraries(self, year: int) -> Device:
        """Return the device with the rates of products that libraries of a year attain.

        Earlier libraries compute unaligned products without tensor cores: training a GPT with 128 heads of 108 took
        1.38 times as long as with 96 heads of 144 (BigScience's runs on 384 A100s; the float32 rate gives 1.35).
        """
        how = self.spec.products
        if how is None or (earlier := how.earlier) is None or year >= earlier.before:
            return self
        halves = {dtype: earlier.share * self.attained(dtype) for dtype in ("float16", "bfloat16")}
        attained = msgspec.structs.replace(self.spec.attained_flop_per_s or Peak(), **halves)
        on_cores = self.attained("float32") / halves["float16"]
        products = msgspec.structs.replace(how, unaligned=(on_cores, on_cores))
        return self.changed(attained_flop_per_s=attained, products=products)

    def kernel_s(self, kernel: Kernel, processor: float = 1.0, memory: float = 1.0) -> float:
        """Return the seconds of a kernel that runs alone.

        `processor` and `memory` are slowdown factors. A product of known shape streams its operands before or while it
        computes (`topologies.kernels`). Other kernels take the longer of computing and streaming, at their category's
        efficiency.
        """
        streaming = max(processor, memory) / self.spec.memory_bandwidth_bytes_per_s
        how = self.spec.products
        if how is not None and (kernel.product is not None or (kernel.attention and how.exponentials_per_s)):
            bytes_per_s = self.spec.efficiency.elementwise / streaming
            computing_s = self._shaped_s(how, kernel, processor, bytes_per_s)
            streaming_s = kernel.nbytes / bytes_per_s
            return max(computing_s, streaming_s) if how.streams_beside else computing_s + streaming_s
        touched = kernel.nbytes + self.spec.knee_bytes if kernel.nbytes else 0.0
        streaming_s = touched * streaming / self.efficiency(kernel.category)
        if not kernel.operations:
            return streaming_s
        return max(kernel.operations * processor / self._rate(kernel), streaming_s)

    def _rate(self, kernel: Kernel) -> float:
        """Return the flop/s of large kernels of a category."""
        if kernel.category == "matmul":
            return self.attained(kernel.dtype)
        return self.peak(kernel.dtype) * self.efficiency(kernel.category)

    def _shaped_s(self, how: Products, kernel: Kernel, processor: float, bytes_per_s: float) -> float:
        if kernel.attention is not None:
            return attention_s(how, kernel.attention, self.attained(kernel.dtype) / processor, bytes_per_s)
        assert kernel.product is not None
        item_bytes, aligned = ITEM_BYTES.get(kernel.dtype, 4), 1.0
        if item_bytes == HALF_BYTES and kernel.category == "matmul" and kernel.product.aligned < ALIGNED:
            aligned = how.unaligned[kernel.product.aligned > 1]
        rates = Rates(
            category_flop_per_s=aligned * self._rate(kernel) / processor,
            matmul_flop_per_s=self.attained(kernel.dtype) / processor,
            bytes_per_s=bytes_per_s,
            item_bytes=item_bytes,
            single=(self.spec.peak_flop_per_s.float32 or self.peak(kernel.dtype)) / self.peak(kernel.dtype),
        )
        return product_s(how, kernel.product, rates)

    def streaming_efficiency(self, kernel: Kernel) -> float:
        """Return the share of the memory bandwidth that a kernel attains while it streams."""
        shaped = kernel.product is not None and self.spec.products is not None
        return self.efficiency("elementwise" if shaped else kernel.category)


@dataclass(frozen=True, slots=True)
class Link:
    """A link between two nodes; `forward` and `backward` are the resources of its directions (the same if shared).

    `bandwidth_bytes_per_s` is the total of its `count` parallel links. `type` is "" if the link has none.
    """

    name: str
    ends: tuple[str, str]
    bandwidth_bytes_per_s: float
    latency_s: float
    forward: int
    backward: int
    type: str = ""
    count: int = 1
    half_bandwidth_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Route:
    """The path of bytes between two devices: resources used per byte, total latency, and the nodes passed.

    A message loads the route as if it were `half_bandwidth_bytes` longer. This is the largest start cost of any link,
    in seconds, times the bandwidth of the narrowest link.
    """

    uses: tuple[Use, ...]
    latency_s: float
    nodes: tuple[str, ...]
    half_bandwidth_bytes: float = 0.0


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Machine(Shown):
    """Devices, memories, links, all their resources, and a route between any two devices.

    `switches` names the other nodes, and `reducing` those switches that can add up the devices' data. Routes are
    computed on first use.
    """

    name: str
    description: str
    devices: tuple[Device, ...]
    memories: tuple[Memory, ...]
    links: tuple[Link, ...]
    resources: tuple[Resource, ...]
    routes: Mapping[tuple[int, int], Route]
    switches: tuple[str, ...] = ()
    reducing: frozenset[str] = frozenset()
    collectives: tuple[CollectiveEntry, ...] = ()

    @property
    def has_library(self) -> bool:
        """Whether ranks use a collectives library: all devices stream messages, like NCCL's kernels."""
        return all(device.spec.streams_messages for device in self.devices)

    def nodes_of(self, devices: Iterable[int]) -> Mapping[str, tuple[int, ...]]:
        """Return the given devices grouped by node, with "" for devices in none."""
        by_node: dict[str, tuple[int, ...]] = {}
        for device in devices:
            node = node_of(self.devices[device].name)
            by_node[node] = (*by_node.get(node, ()), device)
        return by_node

    def has_reducing_switch(self, devices: Iterable[int]) -> bool:
        """Return whether a single reducing switch is all that separates any two of the given devices."""
        first, *others = devices
        between = {self.route(first, other).nodes[1:-1] for other in others}
        return len(between) == 1 and len(nodes := between.pop()) == 1 and nodes[0] in self.reducing

    def is_mesh(self, devices: Sequence[int]) -> bool:
        """Return whether there are three or more devices and every two have a direct link."""
        direct = 2
        pairs = combinations(devices, 2)
        return len(devices) > direct and all(len(self.route(*pair).nodes) == direct for pair in pairs)

    def route(self, source: int, target: int) -> Route:
        """Return the route between two devices, given by index."""
        return self.routes[source, target]

    def bandwidth_bytes_per_s(self, source: int, target: int) -> float:
        """Return the bandwidth of a single message, alone on the machine."""
        return min(self.resources[r].capacity / amount for r, amount in self.route(source, target).uses)

    def require_devices(self, workers: int) -> None:
        """Raise `TopologyError` if a plan has more workers than the machine has devices."""
        if workers > len(self.devices):
            raise TopologyError(
                f"{self.name}: expected at least {workers} devices, one per worker, found {len(self.devices)}"
            )


@dataclass(frozen=True, slots=True)
class Level:
    """The level of one step.

    `bandwidth_bytes_per_s` is the total throughput when every pair of the level sends equally at once. `latency_s` is
    that of the longest route, and `message_s` the fixed cost of one message of every pair.
    """

    ways: int
    bandwidth_bytes_per_s: float
    latency_s: float
    message_s: float


def levels(machine: Machine, ways: Sequence[int]) -> tuple[Level, ...]:
    """Return one level per step, in order; raise `TopologyError` if the machine has too few devices."""
    machine.require_devices(math.prod(ways))
    return tuple(_level(machine, tuple(ways), step) for step in range(len(ways)))


def _level(machine: Machine, ways: tuple[int, ...], step: int) -> Level:
    workers = math.prod(ways)
    inner = math.prod(ways[step + 1 :])
    group = inner * ways[step]
    pairs = [
        (u, w) for u in range(workers) for w in range(workers) if u // group == w // group and u // inner != w // inner
    ]
    load: defaultdict[int, float] = defaultdict(float)
    for pair in pairs:
        for resource, amount in machine.route(*pair).uses:
            load[resource] += amount
    if not pairs:
        return Level(ways[step], math.inf, 0.0, 0.0)
    seconds = max(amount / machine.resources[resource].capacity for resource, amount in load.items())
    routes = [machine.route(*pair) for pair in pairs]
    latency_s = max(route.latency_s for route in routes)
    message_s = seconds * max(route.half_bandwidth_bytes for route in routes)
    return Level(ways[step], len(pairs) / seconds, latency_s, message_s)
