"""Seconds of a rank's tasks: measured, or estimated from similar measured tasks.

An estimate averages the seconds per unit of work of the nearest calls of the same operator, weighted by closeness; the
distance compares logarithms of the operands' extents. Calls on the same dtypes take precedence, because a GPU
multiplies in 16 bits many times as fast as in 32.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from operator import mul

from msgspec.structs import astuple

from topologies.schema import Measured, TransferCost

NEAREST = 4
DIMENSIONS = 4  # compared one by one from the last; the leading ones are merged into one
OTHER_ATTRIBUTES = 1.0  # the distance of an extent twice as large
SAME = 1e-3
FIXED = 0.1  # least share of a call's time that counts as work
PRODUCTS = ("mm", "bmm", "einsum", "convolution")
BETWEEN_TASKS, REPEATED = "; ", " x "
_OPERAND = re.compile(r"([a-z]+)(\d+)\[([\d,]*)\](?:of\[[\d,]*\])?")
_CALL = re.compile(r"(?:(\d+) x )?(\w+)(\S*)")

Extents = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class TransferAmounts:
    """What a rank's part of a transfer moves: messages, pieces, contiguous runs of memory, and bytes."""

    messages: int = 0
    pieces: int = 0
    runs: int = 0
    nbytes: int = 0

    def spelled(self, kind: str) -> str:
        """Return the key of a part of a transfer: "send", "post", "fetch" or "reduce"."""
        return f"{kind} {self.messages} messages {self.pieces} pieces {self.runs} runs {self.nbytes} bytes"

    @property
    def amounts(self) -> tuple[int, int, int, int, int]:
        """The factors of a `TransferCost`'s figures, in their order."""
        return (1, self.messages, self.pieces, self.runs, self.nbytes)


@dataclass(frozen=True, slots=True)
class OpCall:
    """A kernel call parsed from its key: `extents` are log2 of every operand's last dimensions."""

    op: str
    attributes: str
    dtypes: tuple[str, ...]
    extents: Extents
    work: float

    def distance(self, other: OpCall) -> float:
        """Return the distance to another call of the same operator with as many operands."""
        apart = math.dist(self.extents, other.extents)
        return apart + (OTHER_ATTRIBUTES if self.attributes != other.attributes else 0.0)


@lru_cache(1 << 14)
def read_task(text: str) -> tuple[tuple[int, OpCall], ...]:
    """Return the calls of a compute task's key, each with its number of repetitions."""
    return tuple(_read_call(part) for part in text.split(BETWEEN_TASKS))


def _read_call(text: str) -> tuple[int, OpCall]:
    head = _CALL.match(text)
    if head is None:
        raise ValueError(f"expected a kernel call, found {text!r}")
    operands = _OPERAND.findall(text, head.end())
    shapes = [(int(bits), _shape(shape)) for _, bits, shape in operands]
    extents = tuple(math.log2(1 + extent) for _, shape in shapes for extent in _last(shape))
    nbytes = sum(bits // 8 * math.prod(shape) for bits, shape in shapes)
    is_product = len(shapes) == 3 and head[2].startswith(PRODUCTS)
    work = math.sqrt(math.prod(math.prod(shape) for _, shape in shapes)) if is_product else float(nbytes)
    return int(head[1] or 1), OpCall(head[2], head[3], tuple(kind + bits for kind, bits, _ in operands), extents, work)


def _shape(text: str) -> tuple[int, ...]:
    return tuple(int(extent) for extent in text.split(",") if extent)


def _last(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the last extents of a shape, with the leading ones multiplied into one."""
    filled = (1,) * (DIMENSIONS - len(shape)) + shape
    first = len(filled) - DIMENSIONS + 1
    return (math.prod(filled[:first]), *filled[first:])


class Estimates:
    """Seconds of tasks on one type of rank."""

    def __init__(self, measured: Measured) -> None:
        self.measured = measured
        self._known: dict[str, float | None] = dict(measured.tasks)

    def compute_s(self, task: str) -> float | None:
        """Return the seconds of a compute task, or None if no call of its operators was measured."""
        if task not in self._known:
            calls = [(count, self._call_s(call)) for count, call in read_task(task)]
            total = sum(count * (seconds or 0.0) for count, seconds in calls)
            self._known[task] = None if any(seconds is None for _, seconds in calls) else total
        return self._known[task]

    def transfer_s(self, kind: str, moved: TransferAmounts) -> float:
        """Return the seconds of a rank's part of a transfer."""
        measured_s = self._known.get(moved.spelled(kind))
        if measured_s is not None:
            return measured_s
        cost: TransferCost = getattr(self.measured, kind) or TransferCost()
        seconds: float = sum(map(mul, astuple(cost), moved.amounts))
        return seconds

    @cached_property
    def _calls(self) -> dict[tuple[str, int], list[tuple[OpCall, float]]]:
        """Measured calls by operator and number of extents, with their seconds per unit of work less fixed costs."""
        calls: defaultdict[tuple[str, int], list[tuple[OpCall, float]]] = defaultdict(list)
        for text, seconds in self.measured.tasks.items():
            if " -> " in text:
                for call, share_s in _shares(text, seconds):
                    beyond_s = max(share_s - self.measured.call_s, FIXED * share_s)
                    calls[call.op, len(call.extents)].append((call, beyond_s / max(call.work, 1.0)))
        return dict(calls)

    def _call_s(self, call: OpCall) -> float | None:
        like = self._calls.get((call.op, len(call.extents)))
        if like is None:
            return None
        like = [entry for entry in like if entry[0].dtypes == call.dtypes] or like
        nearest = sorted((call.distance(other), rate) for other, rate in like)[:NEAREST]
        weights = [1.0 / (SAME + apart * apart) for apart, _ in nearest]
        mean = sum(weight * math.log(max(rate, 1e-30)) for weight, (_, rate) in zip(weights, nearest, strict=True))
        return self.measured.call_s + call.work * math.exp(mean / sum(weights))


def _shares(text: str, seconds: float) -> Iterator[tuple[OpCall, float]]:
    """Divide a task's seconds among its calls in proportion to their work."""
    calls = read_task(text)
    total = sum(count * call.work for count, call in calls)
    for _, call in calls:
        yield call, seconds * (call.work / total if total else 1.0 / len(calls))
