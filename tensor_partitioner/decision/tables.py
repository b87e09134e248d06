"""Tables of projections and decisions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter

from rich.table import Table

from simulator.projection.result import Projection
from tensor_partitioner import display
from tensor_partitioner.decision.record import Decision, RankedCandidate

SPARED = ("samples/s", "bubble", "exposed", "of peak", "memory")
"""Columns that follow from others or are said in the reason, which a narrow terminal does without."""

OVERFULL = "out of memory"
AT_MOST = "≤ "
LEAST_SHARE = 1e-4
"""Of a step: causes of less are not told."""


def _bytes(nbytes: float) -> str:
    return display.quantity(nbytes, "B")


@display.tables.register
def _(shown: Projection) -> Sequence[Table]:
    """Show a step: what it takes, its seconds by cause, its memory line by line."""
    tables = step_table(shown), shares_table(shown.shares, shown.seconds), sent_table(shown.sent_bytes)
    return *tables, memory_table(shown)


def step_table(step: Projection) -> Table:
    """Say what a step takes."""
    margin = f"{_bytes(step.margin_bytes)} to spare" if step.fits else f"{_bytes(-step.margin_bytes)} too much"
    rows = (
        ("a step", display.seconds(step.seconds)),
        ("samples/s", display.number(step.samples_per_s)),
        (f"of a device's {step.dtype} peak", display.percent(step.utilisation)),
        ("Tflop/s a device", f"{step.flop_per_s_per_device / 1e12:.4g}"),
        ("devices", str(step.devices)),
        ("micro-batches", str(step.micro_batches)),
        ("memory", f"{_bytes(step.needed_bytes)} of {_bytes(step.capacity_bytes)}, {margin}"),
        ("over the roof", f"{step.roof_factor:.3g} times its kernels at their best"),
    )
    return display.facts("projected", rows)


def shares_table(shares: Mapping[str, float], seconds: float) -> Table:
    """Show seconds by cause."""
    told = ((cause, s) for cause, s in shares.items() if s > LEAST_SHARE * seconds)
    rows = ((cause, display.seconds(s), display.percent(s / seconds)) for cause, s in told)
    return display.table("where a step's time goes", ("cause", "time", "share"), rows)


def sent_table(sent_bytes: Mapping[str, int]) -> Table:
    """Show the bytes that a device sends in a step, by axis, most first."""
    ranked = sorted(sent_bytes.items(), key=itemgetter(1), reverse=True)
    return display.table("sent by a device", ("axis", "bytes"), ((axes, _bytes(nbytes)) for axes, nbytes in ranked))


def memory_table(step: Projection) -> Table:
    """Show what fills the fullest device's memory, and what is left."""
    lines = [(line.what, _bytes(line.nbytes)) for line in step.memory]
    left = ("to spare", _bytes(step.margin_bytes)) if step.fits else ("too much", _bytes(-step.margin_bytes))
    return display.table("memory of the fullest device", ("of what", "bytes"), [*lines, left])


@display.tables.register
def _(shown: Decision) -> Sequence[Table]:
    """Show the best candidate of every family, and where the first one's time goes."""
    return candidates_table(shown.of_families(), of_kinds=True), shares_table(
        shown.best.shares, shown.best.seconds_per_step
    )


def candidates_table(candidates: Iterable[RankedCandidate], *, of_kinds: bool = False) -> Table:
    """Rank candidates, with the reason why each loses to the first.

    Those that stand for their kinds take "≤" seconds, but the first: others of a kind that were left out may be faster.
    """
    rows = (
        (
            candidate.family,
            candidate.name,
            AT_MOST * (of_kinds and number > 0 and candidate.parallel is not None)
            + display.seconds(candidate.seconds_per_step),
            display.number(candidate.samples_per_s),
            display.percent(candidate.utilisation),
            display.seconds(candidate.exposed_s),
            display.seconds(candidate.bubble_s),
            _bytes(candidate.needed_bytes),
            _bytes(candidate.margin_bytes) if candidate.fits else OVERFULL,
            candidate.why or "the fastest that fits",
        )
        for number, candidate in enumerate(candidates)
    )
    columns = ("how", "--parallel", "a step", "samples/s", "of peak", "exposed", "bubble", "memory", "to spare", "why")
    return display.table("ways to train it, best first", columns, rows, text=("--parallel", "why"), spare=SPARED)
