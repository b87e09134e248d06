"""What a page shows, as the data that is written into it: every part but the heading may be missing."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tensor_partitioner.decision.record import MachineFacts, ModelFacts, Search
from tensor_partitioner.page.published import PublishedScore


class _Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A frozen record."""


class Row(_Record, frozen=True, kw_only=True):
    """A candidate: seconds by cause and bytes by use are in the order of the decision's `causes` and `uses`."""

    name: str
    family: str
    seconds: float
    bound: float
    fits: bool
    samples_per_s: float
    tokens_per_s: float | None
    utilisation: float
    needed: int
    capacity: float
    exposed: float
    bubble: float
    roof: float
    micro_batches: int
    shares: tuple[float, ...]
    memory: tuple[int, ...]
    why: str


class DecisionPart(_Record, frozen=True, kw_only=True):
    """A decision; `left_out` candidates are slower than all rows that fit."""

    model: ModelFacts
    machine: MachineFacts
    stack: str
    verdict: str
    search: Search
    causes: tuple[str, ...]
    uses: tuple[str, ...]
    rows: tuple[Row, ...]
    left_out: int


class Point(_Record, frozen=True, kw_only=True):
    """What is best for a batch on so many devices: the best of every family, as rows."""

    batch: int
    devices: int
    machine: str
    rows: tuple[Row, ...]


class Span(msgspec.Struct, frozen=True, array_like=True):
    """What a lane does from one moment to another, in seconds."""

    kind: str
    begin_s: float
    end_s: float
    what: str


class Lane(_Record, frozen=True, kw_only=True):
    """A worker or a stage over time."""

    name: str
    spans: tuple[Span, ...]


class Timeline(_Record, frozen=True, kw_only=True):
    """Lanes beside each other; `note` says what is left out or assumed."""

    title: str
    seconds: float
    lanes: tuple[Lane, ...]
    note: str = ""


class Group(_Record, frozen=True, kw_only=True):
    """The grid of devices: stages by data, context and tensor parallel groups; of a searched plan there is none."""

    stages: int
    data: int
    context: int
    tensor: int
    per_node: int
    sentences: tuple[str, ...]
    is_named: bool


class StageRow(_Record, frozen=True, kw_only=True):
    """A stage of the best candidate: blocks, seconds of a micro-batch, bytes of memory."""

    first: str
    last: str
    forward_s: float
    backward_s: float
    needed: int


class TreeNode(_Record, frozen=True, kw_only=True):
    """A switch or device, the link that leads to it from above, and how many subtrees look like this one.

    `load` is the share of a step for which the link is busy, in the direction that is busier; `nbytes` what crosses it
    in a step, in both.
    """

    name: str
    kind: str
    link: str = ""
    bandwidth: float | None = None
    nbytes: int | None = None
    load: float | None = None
    alike: int = 1
    children: tuple[TreeNode, ...] = ()


class Tensor(_Record, frozen=True, kw_only=True):
    """Tensors of alike layers that lie alike: which dimension each step splits, by how many ways."""

    name: str
    layers: int
    shape: tuple[int, ...]
    dtype: str
    layout: tuple[str, ...]
    split: str
    state: str
    dtensor: tuple[str, ...]
    megatron: str
    fsdp: str
    nbytes: int
    held: int


class Alternative(_Record, frozen=True, kw_only=True):
    """Another strategy of an operator, and the bytes that the whole plan would move more with it."""

    split: str
    strategy: tuple[str, ...]
    extra: int


class Operator(_Record, frozen=True, kw_only=True):
    """Operators of alike layers with one strategy: bytes that move for them, and predicted seconds."""

    name: str
    op: str
    phase: str
    count: int
    strategy: tuple[str, ...]
    split: str
    nbytes: int
    seconds: float | None = None
    alternatives: tuple[Alternative, ...] = ()


class Layer(_Record, frozen=True, kw_only=True):
    """A part of the network, alike ones together, with what lies and what is computed in it."""

    name: str
    tensors: tuple[Tensor, ...]
    operators: tuple[Operator, ...]


class Amount(_Record, frozen=True, kw_only=True):
    """A number, of what."""

    what: str
    value: float


class PlanPart(_Record, frozen=True, kw_only=True):
    """A plan: `bytes_` from worker (row) to worker (column), empty where there are too many workers to draw."""

    model: str
    workers: int
    ways: tuple[int, ...]
    axes: tuple[str, ...]
    batch: int | None
    total_bytes: int
    short: tuple[str, ...]
    layers: tuple[Layer, ...]
    causes: tuple[Amount, ...]
    matrix: tuple[tuple[int, ...], ...]
    searched: tuple[tuple[str, str], ...]
    bounds: tuple[Amount, ...]
    bounds_unit: str


class Memory(_Record, frozen=True, kw_only=True):
    """What fills a device's memory when it is fullest."""

    device: str
    peak: int
    capacity: int | None
    verdict: str
    by_kind: Mapping[str, int]


class Occupied(_Record, frozen=True, kw_only=True):
    """A worker's memory over time: at each moment, bytes by kind."""

    worker: int
    kinds: tuple[str, ...]
    at_s: tuple[float, ...]
    nbytes: tuple[tuple[int, ...], ...]
    capacity: float | None


class Spent(_Record, frozen=True, kw_only=True):
    """What a worker's step goes to, in seconds by cause."""

    worker: str
    seconds: Mapping[str, float]


class RunPart(_Record, frozen=True, kw_only=True):
    """A report: a step, predicted or measured."""

    source: str
    machine: str
    hardware: str
    seconds: float | None
    samples_per_s: float | None
    total_bytes: int
    spent: tuple[Spent, ...]
    memory: tuple[Memory, ...]
    facts: tuple[tuple[str, str], ...]


class Given(_Record, frozen=True, kw_only=True):
    """A number that others follow from, and where it is from."""

    about: str
    name: str
    value: str
    source: str


class Content(_Record, frozen=True, kw_only=True):
    """All of a page."""

    title: str
    lead: str
    cards: tuple[tuple[str, str, str], ...]
    trust: tuple[str, ...]
    commands: tuple[str, ...]
    decision: DecisionPart | None = None
    sweep: tuple[Point, ...] = ()
    grid: Group | None = None
    stages: tuple[StageRow, ...] = ()
    plan: PlanPart | None = None
    runs: tuple[RunPart, ...] = ()
    timelines: tuple[Timeline, ...] = ()
    occupied: tuple[Occupied, ...] = ()
    machine: tuple[TreeNode, ...] = ()
    machine_note: str = ""
    inputs: tuple[Given, ...] = ()
    published: tuple[PublishedScore, ...] = ()
