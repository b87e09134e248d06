"""A profile, read from Kineto or Nsight Systems: kernels by class, collectives, and idle time of devices."""

from __future__ import annotations

import gzip
import re
import sqlite3
import zlib
from bisect import bisect, bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from itertools import chain, repeat
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import msgspec

from planner.errors import InputError
from planner.graph.order import KernelClass
from planner.grouping import grouped
from planner.layout.region import normalize
from topologies.reading import read_bytes

COLLECTIVE = "collective: "
"""Prefix of a span's `what` for collectives; the operation follows it."""


class ProfileError(InputError):
    """A file is not a readable profile; the message names it, what was expected and what was found."""


class Timespan(NamedTuple):
    """An interval on a device, in seconds, with the class of its kernel, or a collective."""

    begin_s: float
    end_s: float
    what: str


@dataclass(frozen=True, slots=True)
class Profile:
    """Seconds of a step, averaged over devices and steps.

    `kernels` are by class, `collectives` by operation and group, both including overlap. `exposed_s` is the time of
    collectives without a concurrent kernel, `idle_s` the time of neither.
    """

    seconds: float
    kernels: Mapping[str, float]
    collectives: Mapping[str, float]
    exposed_s: float
    idle_s: float


def profile_of(devices: Iterable[Sequence[Timespan]], begin_s: float, end_s: float, steps: int | None) -> Profile:
    """Return the profile of devices' spans between two moments, divided by the number of steps.

    Raises ProfileError if the number of steps is unknown or the interval is empty.

    >>> spans = [Timespan(0.0, 2.0, "product"), Timespan(1.0, 4.0, COLLECTIVE + "all-reduce")]
    >>> profile_of([spans], 0.0, 5.0, 1)
    Profile(seconds=5.0, kernels={'product': 2.0}, collectives={'all-reduce': 3.0}, exposed_s=2.0, idle_s=1.0)
    """
    if not steps:
        raise ProfileError("the trace does not mark steps (ProfilerStep#N); pass their number with --steps")
    if end_s <= begin_s:
        raise ProfileError("the profile covers no time")
    alone = [_of_device([_within(span, begin_s, end_s) for span in spans], end_s - begin_s, steps) for spans in devices]
    return mean_of(alone)


def mean_of(profiles: Sequence[Profile]) -> Profile:
    """Return the mean of several devices' profiles."""
    return Profile(
        seconds=mean(profile.seconds for profile in profiles),
        kernels=_means([profile.kernels for profile in profiles]),
        collectives=_means([profile.collectives for profile in profiles]),
        exposed_s=mean(profile.exposed_s for profile in profiles),
        idle_s=mean(profile.idle_s for profile in profiles),
    )


def _of_device(spans: Sequence[Timespan], seconds: float, steps: int) -> Profile:
    by_what = grouped((span.what, span) for span in spans if span.end_s > span.begin_s)
    kernels = {what: of for what, of in by_what.items() if not what.startswith(COLLECTIVE)}
    busy_s, computing_s = _covered_s(spans), _covered_s(span for of in kernels.values() for span in of)
    return Profile(
        seconds=seconds / steps,
        kernels={what: sum(span.end_s - span.begin_s for span in of) / steps for what, of in kernels.items()},
        collectives={
            what.removeprefix(COLLECTIVE): _covered_s(of) / steps for what, of in by_what.items() if what not in kernels
        },
        exposed_s=(busy_s - computing_s) / steps,
        idle_s=(seconds - busy_s) / steps,
    )


def _within(span: Timespan, begin_s: float, end_s: float) -> Timespan:
    return Timespan(max(span.begin_s, begin_s), min(span.end_s, end_s), span.what)


def _covered_s(spans: Iterable[Timespan]) -> float:
    """Return the seconds covered by any of the spans."""
    return sum(end - begin for begin, end in normalize((span.begin_s, span.end_s) for span in spans))


def _means(each: Sequence[Mapping[str, float]]) -> dict[str, float]:
    keys = dict.fromkeys(key for of in each for key in of)
    return {key: mean(of.get(key, 0.0) for of in each) for key in keys}


# Rules for the class of a kernel, by the PyTorch operator that launched it, else by its own name.
#
# The names are those of libraries: operators in PyTorch's own namespaces, kernels of CUDA's libraries, operations of
# NCCL and gloo. The first matching pattern decides.


Rules = Sequence[tuple[KernelClass, re.Pattern[str]]]

ANNOTATIONS: Rules = (("optimizer", re.compile(r"Optimizer\.(step|zero_grad)#")),)
"""Annotations that PyTorch puts around its optimizers, whatever runs inside."""

OPERATORS: Rules = tuple(
    (name, re.compile(rf"(?:aten|fsdp|torch\.distributed\.ddp\.reducer|torch::distributed::reducer)::_*(?:{pattern})"))
    for name, pattern in dict[KernelClass, str](
        {
            "optimizer": r"fused_(?:adam|sgd)|fused_adagrad",
            "attention": r"\w*(?:attention|flash|scaled_dot_product)\w*",
            "normalization": r"(?:native_|fused_|cudnn_)?(?:layer|batch|group|rms|instance)_norm",
            "product": r"\w*convolution|conv\d|(?:linear|matmul|einsum|addmv|mv|dot|"
            r"(?:scaled_|grouped_|sparse_)*(?:add|b|ba)*mm)(?:_backward)?\b",
            "reduction": r"\w*softmax|cross_entropy|\w*_loss|sum|mean|a?(?:max|min)(?!imum)|\w*norm\b|"
            r"arg(?:max|min)|topk|sort|cumsum|var|std|prod|logsumexp",
            "movement": r"to|copy|clone|contiguous|cat|stack|chunk|index|gather|scatter|embedding|fill|zero|ones|full|"
            r"split|foreach_(?:copy|zero)|narrow|slice|select|roll|pad|constant_pad|repeat|all_gather_copy|masked_scatter",
        }
    ).items()
)  # fmt: skip
"""Operators, by the start of their names after underscores."""

LEAF: Rules = (("element-wise", re.compile(r"aten::|torch::distributed::reducer::")),)
"""An operator without a rule that calls no other."""

KERNELS: Rules = (
    ("optimizer", re.compile(r"multi_tensor_apply|adam|optimizer", re.IGNORECASE)),
    ("attention", re.compile(r"fmha|flash|attention|mha_", re.IGNORECASE)),
    ("normalization", re.compile(r"(?:layer|batch|group|rms)_?norm|(?:ln|bn)_[fb]w|gammabeta|moments", re.IGNORECASE)),
    ("movement", re.compile(r"nchwtonhwc|nhwctonchw", re.IGNORECASE)),
    ("product", re.compile(r"gem[mv]|cutlass|nvjet|xmma|cublas|cudnn|cijk_|[wd]grad|convolve|winograd", re.IGNORECASE)),
    ("reduction", re.compile(r"softmax|nll_loss|pool|reduce|triton_(?:red|per)_|argmax|topk|sort", re.IGNORECASE)),
    ("movement", re.compile(r"mem ?(?:cpy|set)|copy|catarray|gather|scatter|index|embedding|fill", re.IGNORECASE)),
    ("element-wise", re.compile(r"elementwise|vectorized|triton_poi_|pointwise|dropout", re.IGNORECASE)),
)  # fmt: skip

COMMUNICATION = re.compile(r"^(?:nccl|rccl|gloo:|mscclpp|void nccl)", re.IGNORECASE)
OPERATIONS = {
    "all-reduce": "all_?reduce", "all-gather": "all_?gather", "reduce-scatter": "reduce_?scatter",
    "all-to-all": "all_?to_?all", "broadcast": "broad_?cast", "reduce": "reduce", "send and receive": "send|recv",
}  # fmt: skip


def class_by(rules: Rules, name: str) -> KernelClass | None:
    """Return the class of the first rule that matches a name at its start (a kernel: anywhere), or None.

    >>> class_by(OPERATORS, "aten::addmm"), class_by(OPERATORS, "aten::_softmax"), class_by(OPERATORS, "my::norm")
    ('product', 'reduction', None)
    """
    find = re.Pattern.search if rules is KERNELS else re.Pattern.match
    return next((kind for kind, pattern in rules if find(pattern, name)), None)


def collective_of(name: str, group: str = "") -> str | None:
    """Return a library's collective as spans name it, with its group; None for any other kernel.

    >>> collective_of("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)"), collective_of("gemm")
    ('collective: all-reduce', None)
    """
    if not COMMUNICATION.match(name):
        return None
    kind = next((kind for kind, pattern in OPERATIONS.items() if re.search(pattern, name, re.IGNORECASE)), "other")
    return f"{COLLECTIVE}{kind}{f', group {group}' if group else ''}"


# Traces of PyTorch's profiler (Kineto), in the trace event format: the kernels of each device, by class.
#
# A GPU kernel has the external id of the operator that launched it, which is nested in others of its thread. On a
# CPU, operators are the kernels. The outermost operator with a rule decides the class, so a norm is a norm whatever
# it calls.


STEP = "ProfilerStep#"
ON_GPU = {"kernel", "gpu_memcpy", "gpu_memset"}
ON_HOST = {"cpu_op", "user_annotation"}
MICRO = 1e-6


class KinetoEvent(msgspec.Struct, frozen=True):
    """An event of a trace; times in microseconds."""

    ph: str = ""
    name: str = ""
    cat: str | None = None
    pid: int | str = 0
    tid: int | str = 0
    ts: float = 0.0
    dur: float = 0.0
    args: dict[str, Any] = {}


class Called(NamedTuple):
    """A host event, with the class of the outermost classified event that contains it, or its own."""

    event: KinetoEvent
    kind: str | None
    is_outermost: bool


class KinetoTrace(msgspec.Struct, frozen=True):
    """A trace."""

    traceEvents: tuple[KinetoEvent, ...]  # noqa: N815 -- the format's own name


def kineto_profile(text: bytes, steps: int | None = None) -> Profile:
    """Return the profile of a trace with `steps` steps, or as many as it marks.

    Steps in which nothing runs do not count; PyTorch marks one after the last.
    """
    events = [event for event in msgspec.json.decode(text, type=KinetoTrace).traceEvents if event.ph == "X"]
    spans = _spans_of_gpu(events) if any(event.cat in ON_GPU for event in events) else _spans_of_host(events)
    if not any(spans.values()):
        raise ProfileError("expected kernels or operators, found none")
    every = [span for of in spans.values() for span in of]
    marks = _marks(events)
    begin_s = min(mark.begin_s for mark in marks or every)
    end_s = max(span.end_s for span in (*marks, *every))  # a device may lag behind its host
    return profile_of(list(spans.values()), begin_s, end_s, steps or len({mark.what for mark in marks}))


def _marks(events: Sequence[KinetoEvent]) -> list[Timespan]:
    """Return the marks of the steps in which an operator is called."""
    called = sorted(MICRO * event.ts for event in events if event.cat == "cpu_op")
    marks = (_span(e, e.name) for e in events if e.cat == "user_annotation" and e.name.startswith(STEP))
    return [mark for mark in marks if bisect(called, mark.end_s) > bisect_left(called, mark.begin_s)]


def _spans_of_gpu(events: Sequence[KinetoEvent]) -> Mapping[object, list[Timespan]]:
    """Return the spans of each GPU."""
    launching = {
        str(called.event.args["External id"]): called.kind
        for called in _called(events)
        if called.kind is not None and "External id" in called.event.args
    }
    spans: defaultdict[object, list[Timespan]] = defaultdict(list)
    for event in events:
        if event.cat in ON_GPU:
            group = event.args.get("Process Group Description") or event.args.get("Process Group Name") or ""
            what = collective_of(event.name, str(group)) or launching.get(str(event.args.get("External id")))
            what = what or class_by(KERNELS, event.name) or "other"
            spans[event.args.get("device", event.pid)].append(_span(event, what))
    return spans


def _spans_of_host(events: Sequence[KinetoEvent]) -> Mapping[object, list[Timespan]]:
    """Return the spans of each process."""
    outermost = (called for called in _called(events) if called.is_outermost)
    return grouped((called.event.pid, _span(called.event, called.kind)) for called in outermost if called.kind)


def _span(event: KinetoEvent, what: str) -> Timespan:
    return Timespan(MICRO * event.ts, MICRO * (event.ts + event.dur), what)


def _called(events: Sequence[KinetoEvent]) -> Iterator[Called]:
    """Yield host events, thread by thread, each after the events that contain it."""
    on_host = (event for event in events if event.cat in ON_HOST and not event.name.startswith(STEP))
    for thread in grouped(((event.pid, event.tid), event) for event in on_host).values():
        thread.sort(key=lambda event: (event.ts, -event.dur))
        within: list[tuple[float, str | None]] = []
        for event, following in zip(thread, [*thread[1:], None], strict=True):
            while within and within[-1][0] <= event.ts:
                within.pop()
            outer = within[-1][1] if within else None
            calls = following is not None and following.ts < event.ts + event.dur
            kind = outer or _own_class(event, calls=calls)
            within.append((event.ts + event.dur, kind))
            yield Called(event, kind, outer is None)


def _own_class(event: KinetoEvent, *, calls: bool) -> str | None:
    if event.cat == "user_annotation":
        return collective_of(event.name) or class_by(ANNOTATIONS, event.name)
    return class_by(OPERATORS, event.name) or (None if calls else class_by(LEAF, event.name))


# Reports of Nsight Systems, exported with `nsys export --type sqlite`: kernels by name.


NANO = 1e-9
MOST_OF_A_NAME, MOST_STEPS, STEPS = 1 << 16, 2 * 10**7, 10**5
"""Limits of an export: bytes of a name, and SQLite's steps in reading all kernels, counted so many at a time."""

KERNEL_TABLE = "CUPTI_ACTIVITY_KIND_KERNEL"
KERNELS_WITH_NAMES = (
    "SELECT kernel.start, kernel.end, kernel.deviceId, name.value FROM CUPTI_ACTIVITY_KIND_KERNEL AS kernel "
    "JOIN StringIds AS name ON name.id = kernel.demangledName "
    "WHERE typeof(kernel.start) = 'integer' AND typeof(kernel.end) = 'integer' AND typeof(name.value) = 'text'"
)
COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"


def nsight_profile(path: Path, steps: int | None = None) -> Profile:
    """Return the profile of an export with `steps` steps, from its first kernel to its last."""
    spans: defaultdict[int, list[Timespan]] = defaultdict(list)
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_OF_A_NAME)
            database.set_progress_handler(partial(next, chain(repeat(0, MOST_STEPS // STEPS), repeat(1))), STEPS)
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if not {KERNEL_TABLE, "StringIds"} <= tables:
                raise ProfileError(f"no table {KERNEL_TABLE}; this is not an export of Nsight Systems with kernels")
            for begin, end, device, name in database.execute(KERNELS_WITH_NAMES):
                what = collective_of(name) or class_by(KERNELS, name) or "other"
                spans[device].append(Timespan(NANO * begin, NANO * end, what))
            for table in tables.intersection(COPIES):
                for begin, end, device in database.execute(
                    f"SELECT start, end, deviceId FROM {table} WHERE typeof(start) || typeof(end) = 'integerinteger'"
                ):
                    spans[device].append(Timespan(NANO * begin, NANO * end, "movement"))
    except sqlite3.Error as error:
        raise ProfileError(f"not an export of Nsight Systems, or too large: {error}") from error
    every = [span for of in spans.values() for span in of]
    if not every:
        raise ProfileError("the export has no kernels")
    return profile_of(
        list(spans.values()), min(span.begin_s for span in every), max(span.end_s for span in every), steps
    )


# Read a profile of any supported format.


MOST_OF_A_PROFILE, MOST_EVENTS = 1 << 29, 1 << 23
"""Limits of a trace: its bytes, and the braces of its events."""

SQLITE, GZIP = b"SQLite format 3\0", b"\x1f\x8b"

UNREADABLE = msgspec.DecodeError, RecursionError, UnicodeDecodeError, EOFError, zlib.error, gzip.BadGzipFile
"""What decoders raise for a file that is not a trace."""


def read_profile(path: Path, steps: int | None = None) -> Profile:
    """Return the profile of a PyTorch profiler trace (.json, .json.gz) or an Nsight Systems export (.sqlite).

    `steps` is the number of steps. Raises ProfileError, which names the file.
    """
    try:
        with path.open("rb") as file:
            if file.read(len(SQLITE)) == SQLITE:
                return nsight_profile(path, steps)
        return kineto_profile(_text_of(path), steps)
    except (*UNREADABLE, ProfileError) as error:
        raise ProfileError(f"{path}: {error}") from error


def _text_of(path: Path) -> bytes:
    """Return the text of a trace, which may be compressed. Raises ProfileError if it is too large, and OSError."""
    text = read_bytes(path, MOST_OF_A_PROFILE)
    if text.startswith(GZIP):
        text = gzip.GzipFile(fileobj=BytesIO(text)).read(MOST_OF_A_PROFILE + 1)
    if len(text) > MOST_OF_A_PROFILE or text.count(b"{") > MOST_EVENTS:
        raise ProfileError(f"expected at most {MOST_OF_A_PROFILE} bytes and {MOST_EVENTS} braces: profile fewer steps")
    return text
