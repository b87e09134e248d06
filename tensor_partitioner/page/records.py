"""Records that only a page has: its parts in order, and the data of its drawings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from planner.explanations.explanation import Rejected
from planner.explanations.summary_record import Summary
from planner.parallel import Parallel
from simulator.history import Span
from tensor_partitioner.decision.record import Decision, PublishedScore
from topologies.tree import TreeNode


class Lanes(msgspec.Struct, frozen=True, kw_only=True):
    """A timeline: the spans of workers or stages, by name. `note` says what is left out or assumed."""

    title: str
    seconds: float
    lanes: Mapping[str, Sequence[Span]]
    note: str = ""


class PlanPart(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a page on a plan.

    `alternatives` are other strategies by node. `matrix` has the bytes from worker (row) to worker (column); it is
    empty if there are too many workers to draw.
    """

    summary: Summary
    sentences: tuple[str, ...]
    alternatives: Mapping[str, Sequence[Rejected]]
    matrix: Sequence[Sequence[int]]
    search: tuple[tuple[str, str], ...]
    costs: Mapping[str, float]
    unit: str


class Occupied(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of a worker over time. `nbytes` is [moments, kinds]; `at_s` has the moments in seconds."""

    worker: int
    kinds: tuple[str, ...]
    at_s: tuple[float, ...]
    nbytes: tuple[tuple[int, ...], ...]
    capacity: float | None


class Figure(NamedTuple):
    """An input figure and its source."""

    about: str
    name: str
    value: str
    source: str


class Page(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All parts of a page. Only the heading is required.

    `parallel` is that of the decision's best candidate; `runs` have fields of reports.
    """

    title: str
    lead: str
    cards: tuple[tuple[str, str, str], ...]
    trust: tuple[str, ...]
    commands: tuple[str, ...]
    decision: Decision | None = None
    parallel: Parallel | None = None
    plan: PlanPart | None = None
    runs: tuple[Mapping[str, Any], ...] = ()
    timelines: tuple[Lanes, ...] = ()
    occupied: tuple[Occupied, ...] = ()
    machine: tuple[TreeNode, ...] = ()
    machine_note: str = ""
    inputs: tuple[Figure, ...] = ()
    published: tuple[PublishedScore, ...] = ()
