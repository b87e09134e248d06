"""Decisions and projections in a terminal: the answer in a few lines, then candidates and why they lose."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from textwrap import TextWrapper

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from simulator.projection.result import Projection
from tensor_partitioner import display
from tensor_partitioner.decision.record import COVERAGE, Decision, RankedCandidate, memory_risk, published_scores
from tensor_partitioner.decision.why import AS_FAST, left_open, not_their_best, one_device

HEADING = 10
"""Width of the column of labels, in characters."""

FIGURES = "  {:>11} {:>8} {:>9}  "
"""Columns of a candidate: step time, MFU, memory."""

MOST_LINES = 39
"""Lines of an answer that does not show all candidates."""

TOLD_SHARE = 0.01
"""Causes below this share of the step are not shown."""


STANDARD = ("data (DDP)", "ZeRO-1", "FSDP (ZeRO-3)", "tensor")
"""Families that are always shown."""


class _Wrapper(TextWrapper):
    """Wraps text between words, and degrees of parallelism after commas."""

    wordsep_simple_re = re.compile(r"(\s+|(?<=,)(?=[^\s\d]))")


@dataclass(frozen=True, slots=True)
class Answer:
    """A decision as text, wrapped to the terminal's width, with all candidates or as many as fit in 40 lines."""

    decision: Decision
    all_candidates: bool = False

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines."""
        for number, line in enumerate(self.lines(options.max_width)):
            yield Text(line, style="" if number else "bold")

    def lines(self, width: int) -> list[str]:
        """Return the lines, none longer than `width`."""
        decision = self.decision
        answer = [title(decision), *(line for name, text in facts(decision) for line in fact(name, text, width))]
        if decision.best.fits:
            answer += _command("export", exporting(decision), width)
        rows = decision.candidates if self.all_candidates else decision.of_families()
        if len(rows) == 1:
            return answer
        head = ["", FIGURES.format("step", "MFU", "memory") + "strategy, why it loses"]
        room = len(rows) * MOST_LINES if self.all_candidates else MOST_LINES - len(answer) - len(head) - 2
        told = {id(row): _row(row, width, at_most=row is not rows[0] and not self.all_candidates) for row in rows}
        for row in sorted(rows, key=lambda row: (row is not rows[0], row.family not in STANDARD)):
            room -= len(told[id(row)])
            if room < 0:
                del told[id(row)]
        lines = [line for text in told.values() for line in text]
        hidden = f"; --all shows {len(rows) - len(told)} more" if len(told) < len(rows) else ""
        note = "" if self.all_candidates else not_their_best(decision).removesuffix(".") + hidden
        return [*answer, *head, *lines, *_indented(note, width, 2)]


@display.tables.register
def _(shown: Decision) -> tuple[Answer, ...]:
    """Show the answer and the best candidate of each family."""
    return (Answer(shown),)


def title(decision: Decision) -> str:
    """Return the title: the model and the devices."""
    model, machine = decision.model, decision.machine
    return f"{model.name} on {machine.devices} x {machine.device}"


def facts(decision: Decision) -> Iterator[tuple[str, str]]:
    """Yield the lines of the answer, as pairs of a label and a text."""
    best = decision.best
    if not best.fits:
        yield "", decision.verdict
        yield "search", searched(decision)
        yield "assumed", assumed(decision)
        return
    yield "train as", one_device(decision.machine, best, decision.one_device_s) + best.family
    yield "", f"--parallel {best.name}" if best.parallel is not None else best.name
    step, band = display.seconds(best.seconds_per_step), band_of(decision)
    used = f"{best.utilisation:.1%} MFU ({decision.model.dtype})"
    yield "step", ", ".join((f"{step} ({band})" if band else step, rate(best), used))
    needed, capacity = (display.quantity(nbytes, "B") for nbytes in (best.needed_bytes, best.capacity_bytes))
    if (anchor := decision.anchor) is not None:
        measured, predicted, now = map(display.seconds, (anchor.measured_s, anchor.predicted_s, anchor.anchored_s))
        factors = f"kernels x{anchor.kernels:.2f}, exchanges x{anchor.exchanges:.2f}, host x{anchor.host:.2f}"
        yield "anchored", f"the measured step took {measured}, predicted {predicted}, now {now}: {factors}"
    yield "memory", f"{needed} of {capacity} on the fullest device, {spare(decision)}"
    if decision.faster is not None and decision.faster.seconds_per_step * AS_FAST < best.seconds_per_step:
        faster, risk = decision.faster, memory_risk(published_scores(), decision.faster)
        times = faster.seconds_per_step / best.seconds_per_step
        yield "faster", f"{faster.name}, {times:.2f} times as long, but {_left(faster, risk)}"
    yield "assumed", assumed(decision)
    if decision.not_priced:
        yield "unpriced", ", ".join(decision.not_priced)
    yield "search", searched(decision)
    shares = sorted(best.shares.items(), key=lambda item: -item[1])
    told = [(cause, seconds / best.seconds_per_step) for cause, seconds in shares]
    yield "time", ", ".join(f"{cause} {share:.0%}" for cause, share in told if share >= TOLD_SHARE)


def spare(decision: Decision) -> str:
    """Return how much memory the best candidate leaves, and the share of published runs that needed more than that."""
    return _left(decision.best, decision.memory_risk or 0.0)


def _left(row: RankedCandidate, risk: float) -> str:
    left = f"{display.quantity(row.margin_bytes, 'B')} to spare"
    return f"{left}: too little for {risk:.0%} of published runs" if risk else left


def band_of(decision: Decision) -> str:
    """Return the range of the best step's seconds; "" if it is unknown."""
    if decision.band is None:
        return ""
    low, high = (display.seconds(float(f"{ratio * decision.best.seconds_per_step:.3g}")) for ratio in decision.band)
    return f"{COVERAGE:.0%} of published runs: {low} to {high}"


def rate(row: RankedCandidate) -> str:
    """Return tokens per second, or samples per second for models without sequences."""
    if row.tokens_per_s is None:
        return f"{display.number(row.samples_per_s)} samples/s"
    return f"{display.number(row.tokens_per_s)} tokens/s"


def assumed(decision: Decision) -> str:
    """Return the batch, precision, optimizer and software stack that the decision assumes."""
    model = decision.model
    tokens = "" if model.sequence is None else f"sequence {model.sequence}"
    engine = "" if decision.engine is None else f"engine {decision.engine}"
    what = f"batch {model.batch}", tokens, model.precision, f"optimizer {model.optimizer}"
    return ", ".join(filter(None, (*what, engine, f"stack {decision.stack}")))


def searched(decision: Decision) -> str:
    """Return the numbers of candidates that were considered, priced and not reached, and what they prove."""
    search = decision.search
    left = f", {search.unfinished:,} not reached" if search.unfinished else ""
    if search.unfinished:
        proof = f"not finished: {left_open(search)}"
    else:
        proof = "proved: no candidate is predicted to be faster" if decision.best.fits else "proved: no candidate fits"
        if decision.faster is not None:
            proof = f"proved: none with memory for {COVERAGE:.0%} of published runs is predicted to be faster"
    priced = f"{search.projected:,} of {search.considered:,} candidates priced in {display.seconds(search.seconds)}"
    return f"{proof} ({priced}{left}; the others were ruled out by bounds or cannot divide the model)"


def exporting(decision: Decision) -> str:
    """Return the command that writes a launch file.

    For a searched plan, it is preceded by the command that makes the plan.
    """
    export = next((line for line in decision.commands if line.startswith("export-plan")), decision.commands[-1])
    return export if decision.best.parallel is not None else f"{decision.commands[0]} && {export}"


def _row(row: RankedCandidate, width: int, *, at_most: bool) -> list[str]:
    """Return the lines of a candidate: its figures and family, its degrees, and why it loses."""
    seconds = ("≤ " if at_most and row.parallel is not None else "") + display.seconds(row.seconds_per_step)
    memory = display.quantity(row.needed_bytes, "B")
    figures = FIGURES.format(seconds, f"{row.utilisation:.1%}", memory)
    lines = [figures + row.family]
    if len(figures) + len(row.family) > width:
        lines = [figures.rstrip(), *_indented(row.family, width, 6)]
    if row.name != row.family:
        lines += _indented(row.name, width, 6)
    return [*lines, *_indented(row.why, width, 6)]


def fact(name: str, text: str, width: int) -> list[str]:
    """Return the lines of a label and its text, wrapped to `width`."""
    lines = _indented(text, width, HEADING)
    return [f"{name:<{HEADING}}{lines[0].lstrip()}", *lines[1:]]


def _command(name: str, text: str, width: int) -> list[str]:
    """Return the lines of a command that can be copied from the terminal: they are continued by backslashes."""
    margin = " " * HEADING
    lines = TextWrapper(
        width - 2, initial_indent=f"{name:<{HEADING}}", subsequent_indent=margin, break_on_hyphens=False,
        break_long_words=False,
    ).wrap(text)  # fmt: skip
    return [*(f"{line} \\" for line in lines[:-1]), lines[-1]]


def _indented(text: str, width: int, indent: int) -> list[str]:
    margin = " " * indent
    return _Wrapper(width, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False).wrap(text)


# Tables of predicted steps.


LEAST_SHARE = 1e-4
"""Causes below this share of a step are not shown."""


def _bytes(nbytes: float) -> str:
    return display.quantity(nbytes, "B")


@display.tables.register
def _(shown: Projection) -> Sequence[Table]:
    """Show a step: its key figures, its seconds by cause, and its memory line by line."""
    tables = step_table(shown), shares_table(shown.shares, shown.seconds), sent_table(shown.sent_bytes)
    return *tables, memory_table(shown)


def step_table(step: Projection) -> Table:
    """Return the table of a step's key figures."""
    margin = f"{_bytes(step.margin_bytes)} to spare" if step.fits else f"{_bytes(-step.margin_bytes)} too much"
    rows = (
        ("a step", display.seconds(step.seconds)),
        ("samples/s", display.number(step.samples_per_s)),
        (f"MFU ({step.dtype})", display.percent(step.utilisation)),
        ("Tflop/s a device", f"{step.flop_per_s_per_device / 1e12:.4g}"),
        ("devices", str(step.devices)),
        ("micro-batches", str(step.micro_batches)),
        ("memory", f"{_bytes(step.needed_bytes)} of {_bytes(step.capacity_bytes)}, {margin}"),
        ("step / ideal compute", f"{step.roof_factor:.3g}"),
    )
    return display.facts("projected", rows)


def shares_table(shares: Mapping[str, float], seconds: float) -> Table:
    """Return the table of a step's seconds by cause."""
    told = ((cause, s) for cause, s in shares.items() if s > LEAST_SHARE * seconds)
    rows = ((cause, display.seconds(s), display.percent(s / seconds)) for cause, s in told)
    return display.table("where a step's time goes", ("cause", "time", "share"), rows)


def sent_table(sent_bytes: Mapping[str, int]) -> Table:
    """Return the table of the bytes that a device sends in a step, by axis, most first."""
    ranked = sorted(sent_bytes.items(), key=itemgetter(1), reverse=True)
    return display.table("sent by a device", ("axis", "bytes"), ((axes, _bytes(nbytes)) for axes, nbytes in ranked))


def memory_table(step: Projection) -> Table:
    """Return the table of the memory of the fullest device."""
    lines = [(line.what, _bytes(line.nbytes)) for line in step.memory]
    left = ("to spare", _bytes(step.margin_bytes)) if step.fits else ("too much", _bytes(-step.margin_bytes))
    return display.table("memory of the fullest device", ("of what", "bytes"), [*lines, left])
