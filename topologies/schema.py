"""The records of a topology file (YAML) and their checks by key; how the parts fit together is `build.py`'s.

Every number carries its unit in its key. Bytes are bytes (a GB is 1e9), seconds are seconds.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, get_args

import msgspec

FORMAT: Final = "topology/2"
"""Topology/1 knew neither types of links nor names of many things at once (`gpu*8`); its files load as they did."""

WORKSPACE_BYTES = 64 << 20
"""Default of what kernels may take beside operands and results, as in the executor on a GPU."""

HOST_WORKSPACE_BYTES = 4 << 20
"""The same on a host (`planner/program/workspace.py`, `part_bytes`): copies that stay in its cache."""

Positive = Annotated[float, msgspec.Meta(ge=1e-6, le=1e30)]  # less makes times that floats cannot add up
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
"""The values that a key may have, where these are a few."""


class _Described(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A frozen record; unknown keys are refused."""


class Efficiency(_Described, frozen=True, kw_only=True):
    """The share of the roofline that kernels of each category attain: all of them, or, with `Products`, large ones."""

    matmul: Share
    convolution: Share
    reduction: Share
    elementwise: Share
    other: Share


class Winograd(_Described, frozen=True, kw_only=True):
    """An algorithm for dense square windows: F(outputs x outputs, window x window), as one kernel if `fused`."""

    window: Count
    outputs: Count
    fused: bool = False


class Products(_Described, frozen=True, kw_only=True):
    """How matrix products and convolutions depend on their size and shape (`topologies.kernels`).

    `units` are the multiprocessors, `tiles` the results' tiles [rows, columns], the largest first. `tile_edge` is what
    reading one element of a tile's edge costs, in multiply-adds of the tile's inside; `depth` what starting and ending
    a tile costs, in terms of its sum at the rate of float32; `transform` the share of streaming bandwidth that
    Winograd's transforms attain. Where it `streams_beside`, operands come while others are computed with, else before.
    Attention that stores no matrix takes so many `exponentials_per_s`, and its products attain the share `attention`
    of others' where its kernel is not written for this generation of devices. Products of 16 bits attain the shares
    `unaligned` of their rate where rows have an odd number of elements, and where they have 2 or 4 times one.
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


class Peak(_Described, frozen=True, kw_only=True):
    """Floating-point operations per second by element type; at least one is given.

    `tf32` is of products of float32 whose operands are rounded to 11 bits.
    """

    float8: Positive | None = None
    float16: Positive | None = None
    bfloat16: Positive | None = None
    tf32: Positive | None = None
    float32: Positive | None = None
    float64: Positive | None = None

    def by_dtype(self) -> dict[str, float]:
        """The rates that are given, by the element type."""
        return {name: rate for name, rate in msgspec.structs.asdict(self).items() if rate is not None}


class TransferCost(_Described, frozen=True, kw_only=True):
    """Seconds of a core that one rank's part of a transfer takes, a sum over what is moved.

    A run is what lies together in memory at both ends, a piece is one copy's, of one or several runs.
    """

    task_s: Seconds = 0.0
    message_s: Seconds = 0.0
    piece_s: Seconds = 0.0
    run_s: Seconds = 0.0
    byte_s: Seconds = 0.0


class Measured(_Described, frozen=True, kw_only=True):
    """Seconds that tasks of a rank take of a host's cores or of a GPU, measured with all ranks at work (`calibrate`).

    `tasks` are kernels, and transfers of a host, spelled as `planner.program.task_keys` does. `send` packs and starts
    messages, `post` starts receiving, `fetch` and `reduce` receive, and unpack or combine; a GPU has none of these. A
    rank that has waited for a message has used its core for `wake_s` and, of the time waited, a `waiting_share`.
    `spread` is how far apart repeated measurements were, of their median.
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
        """Hash all but the seconds of tasks."""
        return hash((self.date, self.ranks, self.threads, self.transport, len(self.tasks)))


class NVLinks(_Described, frozen=True, kw_only=True):
    """A device's NVLinks, for descriptions that only count them: what joins two devices, one and a switch, how many."""

    direct: Name
    switched: Name
    count: Count


class Power(_Described, frozen=True, kw_only=True):
    """Watts that a device draws: at most in the mean over a step, idle, and at its full clock.

    That is in the largest products of 16 bits or fewer (`product_w`), and in streaming at its memory's bandwidth.
    """

    limit_w: Positive
    idle_w: Positive
    product_w: Positive
    memory_w: Positive


class DeviceSpec(_Described, frozen=True, kw_only=True):
    """A type of device: what one can do on its own.

    `products` makes products and convolutions depend on their shape; the largest products attain
    `attained_flop_per_s`, or by a dtype without, the share of its peak that `efficiency` says. `knee_bytes` makes other
    kernels depend on their size: they attain half of their bandwidth where they touch so many. `memory_bytes` belongs
    to devices with a memory of their own. `reserved_bytes` of it are taken before anything runs, and cuBLAS takes what
    it does by `compute_capability`, where that is said. `message_core_s_per_byte` is the processor time that sending or
    receiving one byte costs. Tasks that were `measured` take so long. `copy_engines` is how many messages it can send
    at once at full speed (None: any). A device that `streams_messages` packs, sends, and unpacks or combines piece by
    piece, all at the same time. With `power`, a step's products take longer where it would draw more than its limit.
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
    pci_ids: tuple[str, ...] = ()
    nvlinks: NVLinks | None = None
    measured: Measured | None = None

    @property
    def is_host_rank(self) -> bool:
        """True if it is a calibrated rank of a host, whose transfers take time of its cores, as all its tasks do."""
        return self.measured is not None and self.measured.send is not None


class DeviceEntry(_Described, frozen=True, kw_only=True):
    """A device: worker w runs on the w-th. It may share a processor and a memory with others.

    `type` is one of the file's `device_types`, or of the package's (`topologies/devices`); `power_limit_w` is another
    limit than its.
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
    """A node that only passes traffic on; with `staged_in`, by writing it to that memory and reading it back.

    One that `reduces` can add up what devices hold, and write to several at once (NVLink SHARP).
    """

    name: Name
    staged_in: Name | None = None
    reduces: bool = False


class LinkType(_Described, frozen=True, kw_only=True):
    """A kind of link: `bandwidth` holds for each direction, or is shared by both.

    A message occupies it as if it were `half_bandwidth_bytes` longer, which is what starting it costs in time of the
    link: one of that size moves at half of the bandwidth (Hockney's n-half; 0: all sizes at the same).
    """

    name: Name
    bandwidth_bytes_per_s: Positive
    direction: Direction
    latency_s: Seconds
    half_bandwidth_bytes: NotNegative = 0.0


class LinkEntry(_Described, frozen=True, kw_only=True):
    """A link between two nodes: `count` parallel ones of a `type`, or one of its own figures.

    `type` is one of the file's `link_types`, or of the package's (`topologies/links.yaml`).
    """

    ends: tuple[Name, Name]
    type: Name | None = None
    count: Count = 1
    bandwidth_bytes_per_s: Positive | None = None
    direction: Direction | None = None
    latency_s: Seconds | None = None
    name: Name | None = None


class CollectiveEntry(_Described, frozen=True, kw_only=True):
    """How fast a library runs operations by an algorithm, within a node or across several (`topologies.collectives`).

    `latency_s` is what one takes whatever its size; then the payload moves at `bandwidth_share` of the links'
    bandwidth, and takes at least `hop_s` for each message of its longest chain (None: these take what their links say,
    before the payload moves). A library may have several entries of one algorithm, as NCCL has protocols; it takes what
    is fastest for a size.
    """

    algorithm: Algorithm
    operations: Annotated[tuple[Operation, ...], msgspec.Meta(min_length=1)]
    nodes: Nodes = "one"
    latency_s: Seconds = 0.0
    hop_s: Seconds | None = None
    bandwidth_share: Share = 1.0


class NodeEntry(_Described, frozen=True, kw_only=True):
    """Another machine as a part of this one: its `gpu0` is `NAME/gpu0` here."""

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
    """The package's kinds of links."""

    link_types: tuple[LinkType, ...]


class SoldMachine(_Described, frozen=True, kw_only=True):
    """A name under which a machine is sold: its node as a line, and the rate of each network adapter."""

    name: str
    node: str
    gbit_per_s: int


class SoldMachinesFile(_Described, frozen=True, kw_only=True):
    """The machines that the package knows by the names under which they are sold."""

    sold: tuple[SoldMachine, ...]
