"""Why one candidate loses to another, and the verdict, in words."""

from __future__ import annotations

from collections.abc import Iterable

from planner.parallel import Parallel
from simulator.projection.projection import EXCHANGES, WAITING
from tensor_partitioner.decision.record import (
    ALL_ALIKE,
    Decision,
    MachineFacts,
    ModelFacts,
    RankedCandidate,
    SearchFacts,
    of_families,
)
from tensor_partitioner.display import number, percent, quantity
from tensor_partitioner.display import seconds as format_seconds


def format_bytes(nbytes: float) -> str:
    """Write bytes with a decimal prefix and three digits."""
    return quantity(nbytes, "B")


AS_FAST = 1.01
"""Times as long as the best that count as alike."""

COMPUTING, COMMUNICATING = "kernels below the roof, and waiting", "communication that nothing hides"
"""Causes of a step that was simulated."""

CAUSES = {
    COMPUTING: ("slower kernels and waiting", "faster kernels and less waiting"),
    COMMUNICATING: ("communication in the open", "communication that is hidden"),
    "kernels at the roof": ("more to compute", "less to compute"),
    "kernels below the roof": ("smaller, slower kernels", "larger, faster kernels"),
    "recomputation": ("recomputation", "less recomputation"),
    EXCHANGES: ("activations exchanged in the open", "fewer activations exchanged"),
    "weights gathered and gradients scattered, exposed": ("weights gathered in the open", "fewer weights gathered"),
    "waiting for the host": ("waiting for the host", "less waiting for the host"),
    "pipeline bubble and messages": ("the pipeline's bubble", "a smaller bubble"),
    "gradients reduced, exposed": ("gradients reduced in the open", "gradients that are hidden"),
    "optimizer": ("a longer update", "a shorter update"),
    WAITING: ("waiting for the slowest device", "less waiting for the slowest device"),
}
"""What costs a candidate seconds that has more of a cause than the best, and what wins some back that has less."""

ALMOST = 0.05
"""Of the whole difference: what is nearer to it counts as all of it."""

OF_THE_SLOWEST = (
    COMPUTING,
    "kernels at the roof",
    "kernels below the roof",
    "pipeline bubble and messages",
    WAITING,
)
"""Causes that are of the slowest worker, which all wait for."""

UNEVEN = 1.1
"""Times the mean stage that the slowest takes, from which on stages are uneven."""


def left_open(search: SearchFacts) -> str:
    """Say what was left out for want of time, and what it takes at least."""
    return (
        f"{search.unfinished} candidates were not looked at, of which none takes less than "
        f"{format_seconds(search.lower_bound_s)}, {percent(search.gap / (1 + search.gap))} less than the best"
    )


def not_their_best(decision: Decision) -> str:
    """Say of which rows others of their kind may be faster; "" where there is one kind."""
    if len({row.family for row in decision.candidates}) == 1:
        return ""
    return (
        "Of each other kind the fastest that was looked at is shown (≤): what cannot be the best of all was left out."
    )


def why(candidate: RankedCandidate, best: RankedCandidate, heads: int | None = None) -> str:
    """Say in one clause what a candidate has more of than the best, of all the seconds that it takes longer.

    `heads` are those of the model's attention, where it has any: tensor parallel workers that do not divide them do
    not compute alike.
    """
    if not candidate.fits:
        return f"{format_bytes(-candidate.margin_bytes)} too large: {_largest(candidate)}"
    net = candidate.seconds_per_step - best.seconds_per_step
    more = {cause: candidate.shares[cause] - best.shares[cause] for cause in CAUSES if cause in best.shares}
    cause, relief = max(more, key=more.__getitem__), min(more, key=more.__getitem__)
    if more[cause] <= 0 or net <= 0:
        return "as fast"
    cost, _ = CAUSES[cause]
    _, gain = CAUSES[relief]
    if abs(more[cause] - net) <= ALMOST * net:
        said = f"{format_seconds(net)} more for {cost}"
    elif more[cause] < net:
        said = f"{format_seconds(net)} more, {format_seconds(more[cause])} of it for {cost}"
    else:
        won = f"partly won back by {gain} ({format_seconds(net)} in all)"
        said = f"{format_seconds(more[cause])} more for {cost}, {won}"
    return ", as ".join(filter(None, (said, _uneven(candidate, best, heads) if cause in OF_THE_SLOWEST else "")))


def why_searched(row: RankedCandidate, rows: Iterable[RankedCandidate]) -> str:
    """Say why a plan of least time takes longer than that of least bytes; "" where it does not, or is none."""
    faster = [other.objective for other in rows if other.fits and other.seconds_per_step < row.seconds_per_step]
    if row.objective != "time" or "bytes" not in faster:
        return ""
    return "; more than with least bytes, as its search adds up operators, none fused and nothing overlapping"


def _uneven(candidate: RankedCandidate, best: RankedCandidate, heads: int | None) -> str:
    """Say in which way a candidate's workers do less alike than the best's; "" where they do not, or nobody knows."""
    parallel = Parallel.read(candidate.parallel)
    if parallel is not None and heads is not None and heads % parallel.tp:
        return f"{parallel.tp} workers do not divide {heads} heads"
    times, number = _slowest_stage(candidate)
    if times <= max(UNEVEN, _slowest_stage(best)[0]):
        return ""
    which = "the last stage" if number == len(candidate.stages) else f"stage {number} of {len(candidate.stages)}"
    return f"{which} takes {times:.2f} times the mean one"


def _slowest_stage(candidate: RankedCandidate) -> tuple[float, int]:
    """Return how many times the mean the slowest stage takes, and which one it is, from 1."""
    seconds = [stage.forward_s + stage.backward_s for stage in candidate.stages]
    if not sum(seconds):
        return 1.0, 0
    slowest = max(seconds)
    return slowest * len(seconds) / sum(seconds), seconds.index(slowest) + 1


def _largest(candidate: RankedCandidate) -> str:
    line = max(candidate.memory, key=lambda line: line.nbytes)
    return f"{format_bytes(line.nbytes)} of {line.what}"


def verdict(
    model: ModelFacts, machine: MachineFacts, candidates: tuple[RankedCandidate, ...], one_device_s: float | None = None
) -> str:
    """Say in one sentence, or two, what to do; first that one device is as fast as all, where it is."""
    best = candidates[0]
    if not best.fits:
        remedies = " or more devices" if "recompute=full" in best.name else ", more devices or recomputation"
        return (
            f"Nothing fits: {model.name} in {model.precision} with a batch of {model.batch} takes "
            f"{format_bytes(best.needed_bytes)} of the {format_bytes(best.capacity_bytes)} that a device of "
            f"{machine.name} has even as {best.name}, the least of those projected; "
            f"a smaller batch{remedies} would help."
        )
    alone = ""
    if one_device_s is not None and machine.devices > 1:
        how = "as fast" if best.seconds_per_step < AS_FAST * one_device_s else "faster"
        same = "would all do the same work" if best.name.endswith(ALL_ALIKE) else "would gain nothing"
        alone = (
            f"One device alone is {how}, {format_seconds(one_device_s)} a step: use one, as {machine.devices} {same}. "
            "If all have to be used, t"
        )
    said = (
        f"{alone or 'T'}rain {model.name} in {model.precision} on {machine.devices} x {machine.device} as "
        f"{best.family} ({best.name}): {format_seconds(best.seconds_per_step)} a step, "
        f"{number(best.samples_per_s)} samples/s, "
        f"{percent(best.utilisation)} of the {model.dtype} peak, {format_bytes(best.margin_bytes)} of memory to spare."
    )
    families = of_families(candidates)
    others = [c for c in families if c is not best and c.fits]
    if not others:
        return f"{said} Nothing else that was looked at fits." if len(families) > 1 else said
    alike = [c for c in others if c.seconds_per_step < AS_FAST * best.seconds_per_step]
    if alike:
        said = f"{said} As fast within {AS_FAST - 1:.0%}: {', '.join(c.family for c in alike)}."
    slower = others[len(alike) :]
    if not slower:
        return said
    ratio = slower[0].seconds_per_step / best.seconds_per_step
    return f"{said} Next is {slower[0].family} ({slower[0].name}), {ratio:.3g} times as long: {slower[0].why}."
