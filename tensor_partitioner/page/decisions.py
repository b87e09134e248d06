"""A decision as parts of a page: candidates, the grid of devices, how the best splits the work, what to trust."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from planner.parallel import Parallel
from planner.plans.phases import read_schedule
from simulator.projection.result import IDEAL, INEFFICIENCY, INEFFICIENCY_AND_WAITING
from tensor_partitioner.decision.record import Decision
from tensor_partitioner.decision.why import left_open, not_their_best
from tensor_partitioner.display import number, percent, quantity, seconds
from tensor_partitioner.page.records import Figure

MOST_ROWS = 800
"""Of more candidates the fastest are on the page, and the best of every family."""

EXCHANGES = {
    "1f1b": "one forward and one backward pass in turn (1F1B)",
    "gpipe": "all forward passes first, then all backward ones (GPipe)",
    "interleaved": "several runs of layers a stage, in turn (interleaved 1F1B)",
    "zero-bubble": "1F1B with the gradients of weights put off into the gaps (zero bubble)",
    "accumulation": "one micro-batch after the other",
}
ZERO = {
    1: "The optimizer's state is shared out over {dp} data parallel groups (ZeRO-1): each updates its part.",
    2: "Optimizer's state and gradients are shared out over {dp} data parallel groups (ZeRO-2).",
    3: "Weights, gradients and optimizer's state are shared out over {dp} data parallel groups and gathered layer by "
    "layer (FSDP, ZeRO-3).",
}
OF_PEAK = "model FLOP/s over the peak in the data sheet"
KERNELS = (IDEAL, INEFFICIENCY, INEFFICIENCY_AND_WAITING)
RECOMPUTED = {
    "none": "Nothing is computed twice.",
    "selective": "Some of a layer, such as the insides of attention, is computed again in the backward pass.",
    "full": "Every layer is computed again in the backward pass, to save memory.",
}


def shown(decision: Decision) -> Decision:
    """Return a decision with as many candidates as a page has room for, of which only the best has its stages."""
    kept = {*map(id, decision.candidates[:MOST_ROWS]), *map(id, decision.of_families())}
    others = (replace(row, stages=()) for row in decision.candidates[1:] if id(row) in kept)
    return replace(decision, candidates=(decision.best, *others))


def split_of(decision: Decision) -> Iterator[str]:
    """Yield what the best candidate does, in sentences for people."""
    best, model, parallel = decision.best, decision.model, Parallel.read(decision.best.parallel)
    if parallel is None:
        yield (
            f"A plan that was searched for {decision.machine.devices} workers: every tensor and operator is split in "
            "its own way. On few devices the layers below show it; the command at the end of the page writes it, and "
            "report shows it tensor by tensor."
        )
        return
    if parallel.pp > 1:
        yield (
            f"{_layers(model.layers)} cut into {parallel.pp} stages of a pipeline; a stage passes "
            f"on activations. The schedule is {EXCHANGES[read_schedule(parallel.schedule)[0]]}."
        )
    if parallel.dp > 1:
        yield (
            f"The {model.batch} samples of a step are divided over {parallel.dp} data parallel groups, "
            f"{model.batch / parallel.dp:g} each; gradients are added up over the groups once a step."
        )
    if parallel.tp > 1:
        yield (
            f"Within a layer, matrices and attention heads are split over {parallel.tp} tensor parallel devices, which "
            "exchange activations twice a layer and pass"
            + (", and what they would all compute is split along the sequence." if parallel.sp else ".")
        )
    if parallel.ep > 1:
        yield f"Every {parallel.ep} of the data parallel groups share out a layer's experts, and exchange tokens."
    if parallel.cp > 1:
        yield f"Every sequence is split over {parallel.cp} context parallel devices, which exchange keys and values."
    if parallel.zero:
        yield ZERO[parallel.zero].format(dp=parallel.dp)
    each = model.batch // parallel.dp // best.micro_batches
    yield (
        f"A device takes {_count(each, 'sample')} at once and needs {_count(best.micro_batches, 'micro-batch', 'es')} "
        "for a step."
    )
    yield RECOMPUTED[parallel.recompute]


def _layers(count: int) -> str:
    return f"The {count} layers are" if count else "The network is"


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{'' if number == 1 else plural}"


def cards_of(decision: Decision) -> tuple[tuple[str, str, str], ...]:
    """Return the few figures that matter most: name, value, and what it means."""
    best = decision.best
    margin = f"{quantity(abs(best.margin_bytes), 'B')} {'to spare' if best.fits else 'too much'}"
    tokens = "" if best.tokens_per_s is None else f"{quantity(best.tokens_per_s, 'tokens/s')}"
    share = sum(best.shares.get(cause, 0.0) for cause in KERNELS) / best.seconds_per_step
    return (
        ("One step", seconds(best.seconds_per_step), f"{number(best.samples_per_s)} samples/s, {tokens}".rstrip(", ")),
        ("MFU", percent(best.utilisation), OF_PEAK),
        ("Memory of the fullest device", quantity(best.needed_bytes, "B"), margin),
        ("Computing", percent(share), "of the step; the rest is communication, waiting and update"),
        *_beside(decision),
    )


def _beside(decision: Decision) -> Iterator[tuple[str, str, str]]:
    """Yield how much longer than the best data parallelism and FSDP take, which most people would try first."""
    best = decision.best
    for family, name in (("data (DDP)", "Data parallelism (DDP)"), ("FSDP (ZeRO-3)", "FSDP (ZeRO-3)")):
        row = next((row for row in decision.of_families() if row.family == family), None)
        if row is None or row is best or not best.fits:
            continue
        if row.fits:
            yield name, _times(row.seconds_per_step / best.seconds_per_step), f"as long a step: {row.name}"
        else:
            yield name, "does not fit", f"{quantity(-row.margin_bytes, 'B')} too large: {row.name}"


def _times(ratio: float) -> str:
    """Write how many times as long a step takes, to three digits at least."""
    return f"{ratio:.2f} x" if ratio < 10 else f"{ratio:.3g} x"


def trust_of(decision: Decision) -> tuple[str, ...]:
    """Return how far the answer is from the best there could be, and from the hardware's limit."""
    best, search = decision.best, decision.search
    if search.unfinished:
        gap = f"The search is not finished: {left_open(search)}. A larger --budget narrows this."
    elif search.bounded_away:
        gap = "The search is finished: no candidate that was left out can be faster in our model."
    else:
        gap = "The search is finished: every candidate was worked out."
    gap = f"{gap} {not_their_best(decision)}".rstrip()
    return (
        gap,
        f"The step takes {best.roof_factor:.3g} times as long as its kernels alone would at the best rates that large "
        f"kernels attain on a {decision.machine.device}. The bars under “Where time goes” say what the rest is.",
        "Seconds are predicted, not measured: from the device's figures listed under Inputs and the software stack "
        f"“{decision.stack}”. Differences of a few percent between candidates are within the error of such a "
        "prediction; run the first two or three where they are close.",
    )


def asked(decision: Decision) -> Iterator[Figure]:
    """Yield what was asked."""
    model, machine = decision.model, decision.machine
    values = {
        "model": model.name,
        "parameters": f"{model.parameters:,}",
        "samples of a step (global batch)": str(model.batch),
        "tokens of a sample": "-" if model.sequence is None else str(model.sequence),
        "computes in": model.precision,
        "operations of a step": quantity(model.operations, "flop"),
        "devices": f"{machine.devices} x {machine.device}, {machine.per_node} in a node",
    }
    for name, value in values.items():
        yield Figure("asked", name, value, "the command's arguments and the model's graph")
