"""Why one candidate loses to another, and the verdict, in words."""

from __future__ import annotations

from tensor_partitioner.decision.record import Candidate, MachineFacts, ModelFacts
from tensor_partitioner.display import quantity
from tensor_partitioner.display import seconds as format_seconds


def format_bytes(nbytes: float) -> str:
    """Write bytes with a decimal prefix and three digits."""
    return quantity(nbytes, "B")


AS_FAST = 1.01
"""Times as long as the best that count as alike."""

COMPUTING, COMMUNICATING = "computing", "communication that nothing hides"
"""Causes of a step that was simulated."""

CAUSES = {
    COMPUTING: "more to compute",
    COMMUNICATING: "communication in the open",
    "kernels at the roof": "more to compute",
    "kernels below the roof": "smaller, slower kernels",
    "recomputation": "recomputation",
    "tensor and context parallel exchanges": "tensor parallel exchanges",
    "weights gathered and gradients scattered, exposed": "weights gathered in the open",
    "waiting for the host": "waiting for the host",
    "pipeline bubble and messages": "the pipeline's bubble",
    "gradients reduced, exposed": "gradients reduced in the open",
    "optimizer": "a longer update",
}


def why(candidate: Candidate, best: Candidate) -> str:
    """Say in one clause what a candidate has more of than the best."""
    if not candidate.fits:
        return f"{format_bytes(-candidate.margin_bytes)} too large: {_largest(candidate)}"
    more = {cause: candidate.shares[cause] - best.shares[cause] for cause in CAUSES if cause in best.shares}
    cause = max(more, key=more.__getitem__)
    if more[cause] <= 0:
        return "as fast"
    return f"{format_seconds(more[cause])} more for {CAUSES[cause]}"


def _largest(candidate: Candidate) -> str:
    line = max(candidate.memory, key=lambda line: line.nbytes)
    return f"{format_bytes(line.nbytes)} of {line.what}"


def verdict(
    model: ModelFacts, machine: MachineFacts, candidates: tuple[Candidate, ...], one_device_s: float | None = None
) -> str:
    """Say in one sentence, or two, what to do; first that one device is as fast as all, where it is."""
    best = candidates[0]
    if not best.fits:
        return (
            f"Nothing fits: {model.name} with a batch of {model.batch} takes {format_bytes(best.needed_bytes)} of the "
            f"{format_bytes(best.capacity_bytes)} that a device of {machine.name} has even as {best.name}, the least "
            "of those projected; a smaller batch, more devices or recomputation would help."
        )
    alone = f"One device is as fast, {format_seconds(one_device_s)} a step: use one. " if one_device_s else ""
    said = (
        f"{alone}Train {model.name} on {machine.devices} x {machine.device} as {best.family} ({best.name}): "
        f"{format_seconds(best.seconds_per_step)} a step, {best.samples_per_s:.4g} samples/s, "
        f"{best.utilisation:.0%} of the peak, {format_bytes(best.margin_bytes)} of memory to spare."
    )
    families: dict[str, Candidate] = {}
    for candidate in candidates:
        families.setdefault(candidate.family, candidate)
    others = [c for c in families.values() if c is not best and c.fits]
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
