"""The records of a topology file (YAML) and checks of single keys; `build.py` checks how the parts fit together.

Every number has its unit in its key. A GB is 1e9 bytes.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, get_args

import msgspec

FORMAT: Final = "topology/2"
"""Topology/1 had neither link types nor names of many things at once (`gpu*8`); its files still load unchanged."""

WORKSPACE_BYTES = 64 << 20
"""Default workspace of kernels, beyond operands and results, as in the executor on a GPU."""

HOST_WORKSPACE_BYTES = 4 << 20
"""The same on a host (`planner/program/workspace.py`, `part_bytes`): copies that stay in its cache."""

Positive = Annotated[float, msgspec.Meta(ge=1e-6, le=1e30)]  # below this, times are too large to add as floats
NotNegative = Annotated[float, msgspec.Meta(ge=0, le=1e30)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Count = Annotated[int, msgspec.Meta(ge=1, le=1024)]
Capability = Annotated[str, msgspec.Meta(pattern=r"^[1-9]\d?\.\d$")]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Name = Annotated[str, msgspec.Meta(min_length=1)]
Format = Literal["topology/1", "topology/2"]
Direction = Literal["each", "shared"]
Operation = Literal["all-gather", "reduce-scatter", "all-reduce", "all-to-all", "broadcast", "reduce"]
Algorithm = Literal["ring", "tree", "in-switch", "hierarchical", "pairwise"]
Nodes = Literal["one", "several"]
CHOICES = {
    "format": get_args(Format),
    "direction": get_args(Direction),
    "algorithm": get_args(Algorithm),
    "operations": get_args(Operation),
    "nodes": get_args(Nodes),
}
"""Allowed values of keys that have only a few."""


class _Described(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A frozen record that refuses unknown keys."""


class Efficiency(_Described, frozen=True, kw_only=True):
    """The share of the roofline that kernels of each category attain; with `Products`, that large kernels attain."""

    matmul: Share
    convolution: Share
    reduction: Share
    elementwise: Share
    other: Share


class Winograd(_Described, frozen=True, kw_only=True):
    """Winograd's algorithm for dense square windows: F(outputs x outputs, window x window), one kernel if `fused`."""

    window: Count
    outputs: Count
    fused: bool = False


class Earlier(_Described, frozen=True, kw_only=True):
    """Libraries from years before `before`, whose 16-bit products attain this share of the later rate."""

    before: Positive
    share: Share


class Products(_Described, frozen=True, kw_only=True):
    """How matrix products and convolutions depend on their size and shape (`topologies.kernels`).

    `units` is the number of multiprocessors; `tiles` lists tiles of the result [rows, columns], the largest first.
    `tile_edge` is the cost of reading one element of a tile's edge, in multiply-adds of its inside. `depth` is the cost
    of starting and ending a tile, in terms of its sum at the float32 rate. `transform` is the share of streaming
    bandwidth that Winograd's transforms attain. If `streams_beside`, operands arrive during computation, otherwise
    before it. `exponentials_per_s` limits attention that stores no score matrix; `attention` is its products' rate
    relative to others, unless its kernel is native to the device generation. `unaligned` gives the rate of 16-bit
    products relative to aligned ones, first for rows with an odd number of elements, then for 2 or 4 times an odd
    number. `earlier` gives the rate with libraries of earlier years.
    """

    units: Count
    tiles: Annotated[tuple[tuple[Count, Count], ...], msgspec.Meta(min_length=1)]
    tile_edge: NotNegative
    depth: NotNegative
    winograd: tuple[Winograd, ...] = ()
    transform: Share = 1.0
    streams_beside: bool = False
    exponentials_per_s: Positive | None = None
    attention: Share = 1.0
    unaligned: tuple[Share, Share] = (1.0, 1.0)
    earlier: Earlier | None = None


class Peak(_Described, frozen=True, kw_only=True):
    """Peak flop/s by element type; at least one is given.

    `tf32` holds for float32 products with operands rounded to 11 bits.
    """

    float8: Positive | None = None
    float16: Positive | None = None
    bfloat16: Positive | None = None
    tf32: Positive | None = None
    float32: Positive | None = None
    float64: Positive | None = None

    def by_dtype(self) -> dict[str, float]:
        """Return the given rates by element type."""
        return {name: rate for name, rate in msgspec.structs.asdict(self).items() if rate is not None}


class TransferCost(_Described, frozen=True, kw_only=True):
    """Core seconds of one rank's part of a transfer, as a sum over the amounts moved.

    A run is contiguous in memory at both ends; a piece is one copy, of one or more runs.
    """

    task_s: Seconds = 0.0
    message_s: Seconds = 0.0
    piece_s: Seconds = 0.0
    run_s: Seconds = 0.0
    byte_s: Seconds = 0.0


class Measured(_Described, frozen=True, kw_only=True):
    """Seconds of a rank's tasks on host cores or a GPU, measured with all ranks at work (`calibrate`).

    `tasks` holds kernels, and a host's transfers, by the keys of `planner.program.calls`. `send` packs and starts
    messages, `post` starts receiving, `fetch` and `reduce` receive and then unpack or combine; a GPU has none of these.
    A rank that waits for a message uses its core for `wake_s` plus a `waiting_share` of the waiting time. `spread` is
    the spread of repeated measurements relative to their median.
    """

    date: str
    ranks: Count
    threads: Count
    transport: Name
    rounds: Count
    spread: NotNegative
    call_s: Seconds
    wake_s: Seconds = 0.0
    waiting_share: NotNegative = 0.0
    memory_alone_bytes_per_s: Positive
    to_device_bytes_per_s: Positive | None = None
    to_host_bytes_per_s: Positive | None = None
    send: TransferCost | None = None
    post: TransferCost | None = None
    fetch: TransferCost | None = None
    reduce: TransferCost | None = None
    tasks: dict[str, Seconds]

    def __hash__(self) -> int:
        """Hash everything except the tasks' seconds."""
        return hash((self.date, self.ranks, self.threads, self.transport, len(self.tasks)))


class NVLinks(_Described, frozen=True, kw_only=True):
    """A device's NVLinks: their number, and the link types to another device and to a switch ("": only by bridges).

    Used for descriptions that only count NVLinks.
    """

    direct: Name
    switched: str = ""
    count: Count


class Power(_Described, frozen=True, kw_only=True):
    """Power of a device in watts: its limit (mean over a step), idle, and two loads at full clock.

    `product_w` holds in the largest products of 16 bits or fewer, `memory_w` in streaming at the memory's bandwidth.
    """

    limit_w: Positive
    idle_w: Positive
    product_w: Positive
    memory_w: Positive


class DeviceSpec(_Described, frozen=True, kw_only=True):
    """A device type: what one device can do on its own.

    `products` makes products and convolutions depend on their shape. The largest products attain `attained_flop_per_s`;
    a dtype missing there attains the share of its peak in `efficiency`. `knee_bytes` makes other kernels depend on
    their size: a kernel that touches this many bytes attains half of its bandwidth. `memory_bytes` is given for devices
    with their own memory; `reserved_bytes` of it are taken before anything runs. `compute_capability`, if given,
    determines cuBLAS's workspace. `message_core_s_per_byte` is the processor time to send or receive one byte.
    `measured` holds measured task times. `copy_engines` is the number of messages sent at once at full speed (None:
    any). A device that `streams_messages` packs, sends, and unpacks or combines piece by piece, all at the same time.
    With `power`, a step's products slow down if the device would exceed its limit. Without `peer_access`, transfers
    over PCIe go through the memory of a processor.
    """

    name: Name
    peak_flop_per_s: Peak
    attained_flop_per_s: Peak | None = None
    memory_bandwidth_bytes_per_s: Positive
    efficiency: Efficiency
    launch_latency_s: Seconds
    host_launch_s: Seconds = 0.0
    products: Products | None = None
    power: Power | None = None
    knee_bytes: NotNegative = 0.0
    memory_bytes: Positive | None = None
    reserved_bytes: NotNegative = 0.0
    compute_capability: Capability | None = None
    workspace_bytes: NotNegative = WORKSPACE_BYTES
    copy_engines: Count | None = None
    streams_messages: bool = False
    cores: Positive = 1.0
    message_core_s_per_byte: NotNegative = 0.0
    forwards_traffic: bool = False
    pcie_generation: Annotated[int, msgspec.Meta(ge=1, le=6)] = 4
    peer_access: bool = True
    pci_ids: tuple[str, ...] = ()
    nvlinks: NVLinks | None = None
    measured: Measured | None = None

    @property
    def is_host_rank(self) -> bool:
        """Whether this is a calibrated rank of a host: its transfers take core time, like all its tasks."""
        return self.measured is not None and self.measured.send is not None


class DeviceEntry(_Described, frozen=True, kw_only=True):
    """A device: worker w runs on device w. Devices may share a processor and a memory.

    `type` is one of the file's `device_types` or of the package's (`topologies/devices`); `power_limit_w` replaces the
    type's limit.
    """

    name: Name
    type: Name
    processor: Name | None = None
    memory: Name | None = None
    power_limit_w: Positive | None = None


class ProcessorEntry(_Described, frozen=True, kw_only=True):
    """A processor that several devices share; each running kernel occupies its device's `cores` of it."""

    name: Name
    cores: Positive


class MemoryEntry(_Described, frozen=True, kw_only=True):
    """A memory that several devices share."""

    name: Name
    memory_bytes: Positive
    memory_bandwidth_bytes_per_s: Positive


class SwitchEntry(_Described, frozen=True, kw_only=True):
    """A node that only forwards traffic; with `staged_in`, by writing it to that memory and reading it back.

    A switch that `reduces` can add up the devices' data and write the sum to several at once (NVLink SHARP).
    """

    name: Name
    staged_in: Name | None = None
    reduces: bool = False


class LinkType(_Described, frozen=True, kw_only=True):
    """A link type: its bandwidth holds for each direction, or both share it.

    A message occupies the link as if it were `half_bandwidth_bytes` longer, which models its start cost. A message of
    that size moves at half of the bandwidth (Hockney's n-half; 0: no start cost).
    """

    name: Name
    bandwidth_bytes_per_s: Positive
    direction: Direction
    latency_s: Seconds
    half_bandwidth_bytes: NotNegative = 0.0


class LinkEntry(_Described, frozen=True, kw_only=True):
    """A link between two nodes: `count` parallel links of a `type`, or one link with its own figures.

    `type` is one of the file's `link_types` or of the package's (`topologies/links.yaml`).
    """

    ends: tuple[Name, Name]
    type: Name | None = None
    count: Count = 1
    bandwidth_bytes_per_s: Positive | None = None
    direction: Direction | None = None
    latency_s: Seconds | None = None
    name: Name | None = None


class CollectiveEntry(_Described, frozen=True, kw_only=True):
    """How fast a library runs operations by an algorithm, within a node or across several (`topologies.traffic`).

    `latency_s` is the fixed time of an operation. The payload then moves at `bandwidth_share` of the links' bandwidth,
    for at least `hop_s` per message of the longest chain (None: those messages take their links' latency before the
    payload moves). A library may have several entries of one algorithm, like NCCL's protocols; it uses the fastest for
    a size.
    """

    algorithm: Algorithm
    operations: Annotated[tuple[Operation, ...], msgspec.Meta(min_length=1)]
    nodes: Nodes = "one"
    latency_s: Seconds = 0.0
    hop_s: Seconds | None = None
    bandwidth_share: Share = 1.0


class NodeEntry(_Described, frozen=True, kw_only=True):
    """Another machine as part of this one: its `gpu0` becomes `NAME/gpu0`."""

    name: Name
    machine: Name


class TopologyFile(_Described, frozen=True, kw_only=True):
    """A whole topology file."""

    format: Format
    name: Name
    description: str
    device_types: tuple[DeviceSpec, ...] = ()
    link_types: tuple[LinkType, ...] = ()
    nodes: tuple[NodeEntry, ...] = ()
    devices: tuple[DeviceEntry, ...] = ()
    processors: tuple[ProcessorEntry, ...] = ()
    memories: tuple[MemoryEntry, ...] = ()
    switches: tuple[SwitchEntry, ...] = ()
    links: tuple[LinkEntry, ...] = ()
    collectives: tuple[CollectiveEntry, ...] = ()


class LinkTypesFile(_Described, frozen=True, kw_only=True):
    """The package's link types."""

    link_types: tuple[LinkType, ...]


class SoldMachine(_Described, frozen=True, kw_only=True):
    """A machine's product name, its node as a line, and the rate of each network adapter."""

    name: str
    node: str
    gbit_per_s: int


class SoldMachinesFile(_Described, frozen=True, kw_only=True):
    """The machines that the package knows by product name."""

    sold: tuple[SoldMachine, ...]


# Errors and warnings about machine descriptions; commands print them as one line, and an error exits with status 2.


class TopologyError(ValueError):
    """A machine description is wrong: the message gives the file, the place, what was expected and what was found."""


class TopologyWarning(UserWarning):
    """A machine description contains an implausible figure."""
