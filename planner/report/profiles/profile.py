"""A profile: a step's kernels by class, its collectives, and the devices' idle time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import NamedTuple

from planner.errors import InputError

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
    by_what: defaultdict[str, list[Timespan]] = defaultdict(list)
    for span in spans:
        if span.end_s > span.begin_s:
            by_what[span.what].append(span)
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
    return sum(end - begin for begin, end in _joined(spans))


def _joined(spans: Iterable[Timespan]) -> Iterator[tuple[float, float]]:
    """Yield spans, with overlapping ones merged."""
    begin = end = float("-inf")
    for span in sorted(spans):
        if span.begin_s > end:
            if end > begin:
                yield begin, end
            begin = span.begin_s
        end = max(end, span.end_s)
    if end > begin:
        yield begin, end


def _means(each: Sequence[Mapping[str, float]]) -> dict[str, float]:
    keys = dict.fromkeys(key for of in each for key in of)
    return {key: mean(of.get(key, 0.0) for of in each) for key in keys}
