"""Runs of isomorphic segments: consecutive parts of the forward pass that do the same.

A segment is a range of links (see `chain.py`). Two segments are isomorphic if a shift maps one onto the other:
operators, attributes, shapes and the relative positions of operands inside the segment are equal; other operands and
the weights correspond one to one. In a run, each segment reads from the one before it at the same positions, has
weights that no other link reads, and reads alike from before the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]


class Run(NamedTuple):
    """Consecutive `segments` of `period` links each, beginning at link `start`."""

    start: int
    period: int
    segments: int

    @property
    def links(self) -> int:
        """Number of links of all segments."""
        return self.period * self.segments

    @property
    def stop(self) -> int:
        """The first link after the last segment."""
        return self.start + self.links


@dataclass(frozen=True, slots=True)
class Links:
    """The links of a forward pass, with the properties that decide which are equivalent.

    - `colors` are equal for links that differ at most in the tensors they read from other links and in leaves, which no
      link produces: [link].
    - `reads` lists these tensors, in order. `origins` gives the link that produces a tensor, and its number among the
      link's results.
    - `edges` are pairs of a link and one that it reads from: [2, edges].
    - `own` gives the first and last link that read each weight.
    - `crossing` is the bytes read after each border from links before it; `weights` is the bytes of the weights that
      each link reads.
    """

    colors: Numbers
    reads: Sequence[Sequence[str]]
    origins: Mapping[str, tuple[int, int]]
    edges: Numbers
    own: Mapping[str, tuple[int, int]]
    crossing: Numbers
    weights: Numbers

    @property
    def spans(self) -> Numbers:
        """First and last link that read each weight: [2, weights]."""
        return np.array(list(self.own.values()), dtype=np.int64).reshape(-1, 2).T


def repeated_runs(links: Links, begin: int, end: int) -> Iterator[Run]:
    """Yield the runs from `begin` to `end`, in order.

    The run with the most links is chosen first, then runs are chosen in the same way before and after it. Ties are
    broken by the shorter period, then by fewer bytes between the first two segments, then by the larger weight at the
    start, then by the earlier start.
    """
    run = _best(links, begin, end)
    if run is not None:
        yield from repeated_runs(links, begin, run.start)
        yield run
        yield from repeated_runs(links, run.stop, end)


Rank = tuple[int, int, int, int, int]
"""Rank of a run, smallest first: links (negative), period, bytes between segments, first weight (negative), start."""


def _best(links: Links, begin: int, end: int) -> Run | None:
    """Return the best run of a range; candidates are verified only once they rank first."""
    possible: list[tuple[Rank, int, Run, int]] = []
    for start, stop, period in _stretches(links.colors, begin, end):
        run = _longest(start, stop, period)
        possible.append(((-run.links, period, 0, -int(links.weights.max()), start), STRETCH, run, stop))
    heapify(possible)
    while possible:
        _, state, run, stop = heappop(possible)
        if state == RUN:
            return run
        if state == STRETCH:
            runs = [_longest(start, stop, run.period) for start in _possible_starts(links, run.start, stop, run.period)]
        else:
            runs = [*_verified(links, run)]
        for new in runs:
            heappush(possible, (_rank(links, new), state + 1, new, stop))
    return None


STRETCH, CANDIDATE, RUN = range(3)
"""States of a possible run: a stretch of links that repeats by colour, a start within it, a verified run."""


def _stretches(colors: Numbers, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield (start, stop, period) of the longest stretches of at least two periods that repeat by their colours."""
    for period in range(1, (end - begin) // 2 + 1):
        differs = np.flatnonzero(colors[begin : end - period] != colors[begin + period : end])
        borders = np.concatenate(([-1], differs, [end - begin - period]))
        for at in np.flatnonzero(np.diff(borders) > period):
            yield begin + int(borders[at]) + 1, begin + int(borders[at + 1]) + period, period


def _possible_starts(links: Links, begin: int, stop: int, period: int) -> Iterator[int]:
    """Yield the possible starts of runs within the first period of a stretch.

    A segment of the run and the one after it must have weights, and the second must read from the first.
    """
    count = stop - 2 * period - begin + 1
    (readers, makers), (first, last) = links.edges, links.spans
    reads = _covered(
        np.maximum(makers - period, readers - 2 * period) + 1, np.minimum(makers, readers - period), begin, count
    )
    weights = _covered(last - period + 1, first, begin, count)
    next_weights = _covered(last - 2 * period + 1, first - period, begin, count)
    possible = reads & weights & next_weights
    return (begin + at for at in range(min(period, count)) if possible[at::period].any())


def _covered(lows: Numbers, highs: Numbers, begin: int, count: int) -> NDArray[np.bool_]:
    """Return True for each of `count` links from `begin` that lies in one of the inclusive ranges: [count]."""
    starts, stops = np.clip(lows - begin, 0, count), np.clip(highs + 1 - begin, 0, count)
    valid = starts < stops
    change = np.zeros(count + 1, dtype=np.int64)
    np.add.at(change, starts[valid], 1)
    np.add.at(change, stops[valid], -1)
    return np.cumsum(change[:-1]) > 0


def _longest(start: int, stop: int, period: int) -> Run:
    return Run(start, period, (stop - start) // period)


def _rank(links: Links, run: Run) -> Rank:
    between = int(links.crossing[run.start + run.period])
    return -run.links, run.period, between, -int(links.weights[run.start]), run.start


def _verified(links: Links, candidate: Run) -> Iterator[Run]:
    """Yield the runs within a candidate, starting from each of its segments."""
    for start in range(candidate.start, candidate.stop - candidate.period, candidate.period):
        run = Run(start, candidate.period, 1)
        while run.stop < candidate.stop and _goes_on(links, run):
            run = run._replace(segments=run.segments + 1)
        if run.segments > 1:
            yield run
        if run.stop == candidate.stop:
            return


def _goes_on(links: Links, run: Run) -> bool:
    """Return True if the links after a run are one more segment of it."""
    last, new = run.stop - run.period, run.stop
    if not (_has_weights(links, last, run.period) and _has_weights(links, new, run.period)):
        return False
    there, back = dict[str, str](), dict[str, str]()
    is_read = False
    for link in range(last, new):
        for old, name in zip(links.reads[link], links.reads[link + run.period], strict=True):
            if there.setdefault(old, name) != name or back.setdefault(name, old) != old:
                return False
            if not _corresponds(links, run, old, name):
                return False
            is_read |= last <= links.origins.get(name, OUTSIDE)[0] < new
    return is_read


OUTSIDE = -1, 0
"""Origin of tensors that no link produces."""


def _corresponds(links: Links, run: Run, old: str, name: str) -> bool:
    """Return True if the last segment of a run may read `old` where the next one reads `name`.

    The second segment reads from the first what the first reads from anywhere before it.
    """
    (link, number), new = links.origins.get(old, OUTSIDE), links.origins.get(name, OUTSIDE)
    if link >= run.start:
        return new == (link + run.period, number)
    return new[0] < (run.stop if run.segments == 1 else run.start)


def _has_weights(links: Links, start: int, period: int) -> bool:
    """Return True if a segment reads weights that no link outside it reads."""
    read = (links.own[name] for link in range(start, start + period) for name in links.reads[link] if name in links.own)
    return any(start <= first and last < start + period for first, last in read)
