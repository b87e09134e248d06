"""The parts of a decision's page: candidates, devices, the best candidate's division of work, and the input figures."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

import msgspec
from msgspec.structs import replace

from simulator.projection.stack import stack_named
from tensor_partitioner.decision.answer import assumed, band_of, rate, spare
from tensor_partitioner.decision.record import Decision
from tensor_partitioner.decision.why import left_open, not_their_best
from tensor_partitioner.display import percent, quantity, seconds
from tensor_partitioner.page.runs import Figure
from topologies import Machine
from topologies.reading import DEVICES, LINKS, device_names, link_types
from topologies.schema import DeviceSpec

MOST_ROWS = 800
"""Most candidates on a page: the fastest, besides the best of each family."""


def shown(decision: Decision) -> Decision:
    """Return the decision with only the candidates that a page shows. Only the best keeps its stages."""
    kept = {*map(id, (*decision.candidates[:MOST_ROWS], *decision.of_families(), decision.faster))}
    others = (replace(row, stages=()) for row in decision.candidates[1:] if id(row) in kept)
    return replace(decision, candidates=(decision.best, *others))


def cards_of(decision: Decision) -> tuple[tuple[str, str, str], ...]:
    """Return the key figures, each as name, value and meaning."""
    best = decision.best
    margin = spare(decision) if best.fits else f"{quantity(-best.margin_bytes, 'B')} too much"
    return (
        ("Train as", best.family, best.name),
        ("One step", seconds(best.seconds_per_step), ", ".join(filter(None, (band_of(decision), rate(best))))),
        ("MFU", percent(best.utilisation), f"model FLOP/s over the {decision.model.dtype} peak of the data sheet"),
        ("Memory of the fullest device", quantity(best.needed_bytes, "B"), margin),
        ("Assumed", f"batch {decision.model.batch}", assumed(decision).partition(", ")[2]),
        *_beside(decision),
    )


def _beside(decision: Decision) -> Iterator[tuple[str, str, str]]:
    """Yield how a faster candidate, and DDP and FSDP, which most people would try first, compare with the best."""
    best, faster = decision.best, decision.faster
    if best.fits and faster is not None:
        left = f"{quantity(faster.margin_bytes, 'B')} of memory to spare may not suffice"
        times = _times(faster.seconds_per_step / best.seconds_per_step)
        yield "Faster", times, f"as long a step, but {left}: {faster.name}"
    for family, name in (("data (DDP)", "Data parallelism (DDP)"), ("FSDP (ZeRO-3)", "FSDP (ZeRO-3)")):
        row = next((row for row in decision.of_families() if row.family == family), None)
        if row is None or row is best or not best.fits:
            continue
        if row.fits:
            yield name, _times(row.seconds_per_step / best.seconds_per_step), f"as long a step: {row.name}"
        else:
            yield name, "does not fit", f"{quantity(-row.margin_bytes, 'B')} too large: {row.name}"


def _times(ratio: float) -> str:
    """Format a ratio of step times with at least three digits."""
    return f"{ratio:.2f} x" if ratio < 10 else f"{ratio:.3g} x"


def gap_of(decision: Decision) -> str:
    """Return how far the answer may be from the optimum."""
    search = decision.search
    if search.unfinished:
        gap = f"The search is not finished: {left_open(search)}. A larger --budget narrows this."
    elif search.bounded_away:
        gap = "The search is finished: no candidate that was left out can be faster in our model."
    else:
        gap = "The search is finished: every candidate was worked out."
    return f"{gap} {not_their_best(decision)}".rstrip()


def asked(decision: Decision) -> Iterator[Figure]:
    """Yield the inputs of the decision."""
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


OWN_FILE = "the machine's file"
ASSUMED = "simulator/projection/stack.py: the slowdown measured by Hetu-Galvatron, others assumed, or fitted as it says"
SELDOM = ("name", "pci_ids", "nvlinks", "measured")
_LINE = re.compile(r"(?P<key>\w+):\s*(?P<value>[^#]*?)\s*(?:# *(?P<source>.*))?")
_LINK = re.compile(r"- \{name: (?P<key>[\w-]+),.*\}\s*(?:# *(?P<source>.*))?")


def machine_inputs(machine: Machine | None) -> Iterator[Figure]:
    """Yield the figures of a machine's device types, then of its link types; none if the machine is None."""
    if machine is None:
        return
    specs = {device.spec.name: device.spec for device in machine.devices}
    for name, spec in specs.items():
        is_ours = name in device_names()
        sources = _sources(DEVICES / f"{name}.yaml", _LINE) if is_ours else {}
        for key, inner, value in _figures(spec, sources):
            source = sources.get(inner) or (f"topologies/devices/{name}.yaml" if is_ours else OWN_FILE)
            yield Figure(f"device {name}", key, value, source)
    known, sources = link_types(), _sources(LINKS, _LINK)
    for name in dict.fromkeys(link.type for link in machine.links if link.type):
        first = next(link for link in machine.links if link.type == name)
        value = f"{first.bandwidth_bytes_per_s / first.count:.4g} bytes/s, {first.latency_s:.3g} s"
        yield Figure("link", name, value, sources.get(name, "") if name in known else OWN_FILE)


def stack_inputs(name: str) -> Iterator[Figure]:
    """Yield the figures of a software stack."""
    for key, value in asdict(stack_named(name)).items():
        for inner, figure in value.items() if isinstance(value, dict) else ((key, value),):
            if figure is not None:
                yield Figure(f"stack {name}", inner, str(figure), ASSUMED)


def _figures(spec: DeviceSpec, sources: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield a device's figures: name, key in the file, and value as text. Nested records are flattened."""
    for key, value in msgspec.to_builtins(spec).items():
        if key in SELDOM:
            continue
        if isinstance(value, dict) and not sources.get(key):
            yield from ((f"{key}: {inner}", inner, _text(figure)) for inner, figure in value.items())
        else:
            yield key, key, _text(value)


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(inner)}" for key, inner in value.items())
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _sources(path: Path, form: re.Pattern[str]) -> Mapping[str, str]:
    """Return the source of each key: the comment on its line, else above it, else of its section (`# ---`)."""
    sources: dict[str, str] = {}
    section: list[str] = []
    above: list[str] = []
    was_comment = False
    for line in path.read_text().splitlines():
        text = line.strip()
        is_comment = text.startswith("#")
        if text.startswith("# ---"):
            above = section = [text.strip("# -")]
        elif is_comment and was_comment:
            above.append(text.strip("# "))
        elif is_comment:
            above = [text.strip("# ")]
        elif not text:
            above = section
        elif match := form.fullmatch(text):
            sources[match["key"]] = match["source"] or " ".join(above)
            above = above if form is _LINK else []
        was_comment = is_comment
    return sources
