"""A decision as parts of a page: candidates, the grid of devices, how the best splits the work, what to trust."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from planner.parallel import Parallel
from tensor_partitioner.decision.record import Candidate, Decision
from tensor_partitioner.decision.why import left_open, not_their_best
from tensor_partitioner.display import number, percent, quantity, seconds
from tensor_partitioner.page.records import DecisionPart, Group, Row, StageRow

MOST_ROWS = 800
"""Of more candidates the fastest are on the page, and the best of every family."""

LEAST_SHARE = 1e-6
"""Of a step: less is rounding."""

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
OF_PEAK = "model operations a second over the data sheet's"
RECOMPUTED = {
    "none": "Nothing is computed twice.",
    "selective": "Some of a layer, such as the insides of attention, is computed again in the backward pass.",
    "full": "Every layer is computed again in the backward pass, to save memory.",
}


def decision_part(decision: Decision) -> DecisionPart:
    """Return a decision's candidates, with the names of causes and uses once."""
    causes = tuple(decision.best.shares)
    uses = tuple(dict.fromkeys(line.what for row in decision.candidates for line in row.memory))
    kept = {id(row): row for row in (*decision.candidates[:MOST_ROWS], *decision.of_families())}
    rows = [row for row in decision.candidates if id(row) in kept]
    return DecisionPart(
        model=decision.model,
        machine=decision.machine,
        stack=decision.stack,
        verdict=decision.verdict,
        search=decision.search,
        causes=causes,
        uses=uses,
        rows=rows_of(rows, causes, uses),
        left_out=len(decision.candidates) - len(rows),
    )


def rows_of(candidates: Sequence[Candidate], causes: Sequence[str], uses: Sequence[str]) -> tuple[Row, ...]:
    """Return candidates as rows of a page."""
    return tuple(_row(candidate, causes, uses) for candidate in candidates)


def _row(candidate: Candidate, causes: Sequence[str], uses: Sequence[str]) -> Row:
    held = {line.what: line.nbytes for line in candidate.memory}
    return Row(
        name=candidate.name,
        family=candidate.family,
        seconds=_digits(candidate.seconds_per_step),
        bound=_digits(candidate.bound_s),
        fits=candidate.fits,
        samples_per_s=_digits(candidate.samples_per_s),
        tokens_per_s=candidate.tokens_per_s and _digits(candidate.tokens_per_s),
        utilisation=_digits(candidate.utilisation),
        needed=candidate.needed_bytes,
        capacity=candidate.capacity_bytes,
        exposed=_digits(candidate.exposed_s),
        bubble=_digits(candidate.bubble_s),
        roof=_digits(candidate.roof_factor),
        micro_batches=candidate.micro_batches,
        shares=tuple(_share(candidate.shares[cause], candidate.seconds_per_step) for cause in causes),
        memory=tuple(held.get(use, 0) for use in uses),
        why=candidate.why,
    )


def _share(part_s: float, seconds_per_step: float) -> float:
    """Return seconds of a step; nothing where rounding alone has left them."""
    return _digits(part_s) if abs(part_s) > LEAST_SHARE * seconds_per_step else 0.0


def _digits(value: float) -> float:
    """Return a value to the digits that a page can show."""
    return float(f"{value:.6g}")


def grid_of(decision: Decision) -> Group:
    """Return who of the devices does what under the best candidate."""
    machine, parallel = decision.machine, Parallel.read(decision.best.parallel)
    if parallel is None:
        parallel = Parallel(tp=machine.devices)
    return Group(
        stages=parallel.pp,
        data=parallel.dp,
        context=parallel.cp,
        tensor=parallel.tp,
        per_node=machine.per_node,
        sentences=tuple(_sentences(decision, parallel)),
        is_named=decision.best.parallel is not None,
    )


def _sentences(decision: Decision, parallel: Parallel) -> Iterator[str]:
    """Yield what the best candidate does, in sentences for people."""
    best, model = decision.best, decision.model
    if best.parallel is None:
        yield (
            f"A plan that was searched for {decision.machine.devices} workers: every tensor and operator is split in "
            "its own way. On few devices the layers below show it; the command at the end of the page writes it, and "
            "report shows it tensor by tensor."
        )
        return
    if parallel.pp > 1:
        yield (
            f"{_layers(model.layers)} cut into {parallel.pp} stages of a pipeline; a stage passes "
            f"on activations. The schedule is {EXCHANGES[parallel.schedule.partition(':')[0]]}."
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


def stage_rows(decision: Decision) -> tuple[StageRow, ...]:
    """Return the stages of the best candidate, where there are several."""
    stages = decision.best.stages
    if len(stages) < 2:
        return ()
    return tuple(
        StageRow(
            first=stage.first,
            last=stage.last,
            forward_s=stage.forward_s,
            backward_s=stage.backward_s,
            needed=stage.needed_bytes,
        )
        for stage in stages
    )


def cards_of(decision: Decision) -> tuple[tuple[str, str, str], ...]:
    """Return the few figures that matter most: name, value, and what it means."""
    best = decision.best
    margin = f"{quantity(abs(best.margin_bytes), 'B')} {'to spare' if best.fits else 'too much'}"
    tokens = "" if best.tokens_per_s is None else f"{quantity(best.tokens_per_s, 'tokens/s')}"
    share = sum(best.shares[cause] for cause in best.shares if cause.startswith("kernels")) / best.seconds_per_step
    return (
        ("One step", seconds(best.seconds_per_step), f"{number(best.samples_per_s)} samples/s, {tokens}".rstrip(", ")),
        (f"Of the devices' {decision.model.dtype} peak", percent(best.utilisation), OF_PEAK),
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


def inputs_of_model(decision: Decision) -> Mapping[str, str]:
    """Return what was asked."""
    model, machine = decision.model, decision.machine
    return {
        "model": model.name,
        "parameters": f"{model.parameters:,}",
        "samples of a step (global batch)": str(model.batch),
        "tokens of a sample": "-" if model.sequence is None else str(model.sequence),
        "computes in": model.precision,
        "operations of a step": quantity(model.operations, "flop"),
        "devices": f"{machine.devices} x {machine.device}, {machine.per_node} in a node",
    }
