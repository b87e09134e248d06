"""The fastest kernels of each operator: measured on the calls and the memory of a program; on a GPU PyTorch's."""

from __future__ import annotations

import time
from collections import ChainMap, Counter, defaultdict
from collections.abc import Mapping

import numpy as np

from executor.arena import Memory
from executor.backend import synchronize
from executor.cluster import Cluster
from executor.exchange import Action
from executor.kernel_calls import KernelCalls, kernel_calls
from executor.kernels import KERNELS, LIBRARIES, NATIVE, KernelSet
from executor.schedules import Rate
from planner.errors import InputError
from planner.program.tasks import Kernel, SlicedCall

AUTO = "auto"
"""Of every operator the library that is faster on the job's own calls."""

TRIALS = 3
"""Runs of a call, of which the shortest counts; the first one touches memory."""


def kernel_set(library: str, memory: Memory, cluster: Cluster) -> KernelSet:
    """Return a library's kernels, or with `auto` every operator's fastest (collective); overwrites the memory then.

    On a GPU `auto` is PyTorch, where it computes there. Raises InputError for a library that is not loaded, or does not
    compute on these arrays.
    """
    if library == AUTO and memory.xp is not np:
        torch = LIBRARIES.get("torch")
        return torch if torch is not None and torch.obstacle(memory.xp) is None else LIBRARIES["arrays"]
    if library in LIBRARIES:
        if (obstacle := LIBRARIES[library].obstacle(memory.xp)) is not None:
            raise InputError(f"kernels {library!r}: {obstacle}: use --kernels arrays")
        return LIBRARIES[library]
    if library != AUTO:
        raise InputError(f"kernels {library!r}: expected one of {', '.join((*LIBRARIES, AUTO))}")
    memory.arena.bytes[...] = 0  # which are valid indices, too
    seconds = defaultdict[tuple[str, str], float](float)
    for of_rank in cluster.all_gather(_seconds(memory)):
        for key, taken in of_rank.items():
            seconds[key] += taken
    return _fastest(seconds)


def _seconds(memory: Memory) -> Mapping[tuple[str, str], float]:
    """Return how long all calls of each operator take by each library, of operators that several have."""
    calls = {name: KernelCalls(memory, kernels, Rate()) for name, kernels in LIBRARIES.items()}
    alike = Counter(_alike(*call) for call in kernel_calls(memory.program.tasks) if _is_choice(call[0].op))
    firsts = {_alike(*call): call for call in reversed(list(kernel_calls(memory.program.tasks)))}
    seconds = defaultdict[tuple[str, str], float](float)
    for key, count in alike.items():
        for name in LIBRARIES:
            action = calls[name].action(*firsts[key])
            seconds[firsts[key][0].op, name] += count * min(_timed(action, memory) for _ in range(TRIALS))
    return seconds


def _is_choice(op: str) -> bool:
    return len({id(kernels.kernels[op]) for kernels in LIBRARIES.values() if op in kernels.kernels}) > 1


def _alike(kernel: Kernel, call: SlicedCall) -> tuple[str, ...]:
    """Name what the duration of a call depends on."""
    ranges = {name: stop - start for name, (start, stop) in call.ranges.items()}
    return kernel.op, repr(kernel.attributes), repr(ranges), repr(call.combine)


def _timed(action: Action, memory: Memory) -> float:
    started = time.perf_counter()
    action()
    synchronize(memory.xp)
    return time.perf_counter() - started


def _fastest(seconds: Mapping[tuple[str, str], float]) -> KernelSet:
    ops = sorted({op for op, _ in seconds})
    chosen = {op: min(LIBRARIES, key=lambda name: seconds[op, name]) for op in ops}
    sets = {op: LIBRARIES[name] for op, name in chosen.items()}
    return KernelSet(
        library=_said(chosen),
        kernels=ChainMap({op: kernels.kernels[op] for op, kernels in sets.items()}, KERNELS),
        adding={op: kernels.adding[op] for op, kernels in sets.items() if op in kernels.adding},
        native=NATIVE | {op for op, kernels in sets.items() if op in kernels.native},
    )


def _said(chosen: Mapping[str, str]) -> str:
    """Say which operators each library computes: all that are not named are the first's."""
    first, *others = LIBRARIES
    parts = [
        f"{LIBRARIES[name].library} of {', '.join(op for op in chosen if chosen[op] == name)}"
        for name in others
        if name in chosen.values()
    ]
    return "; ".join([*parts, LIBRARIES[first].library])
