"""The figures that a prediction stands on, each with its source as its file's comments give it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

import msgspec

from simulator.projection.stack import Stack
from tensor_partitioner.page.records import Figure
from topologies import Machine
from topologies.library import DEVICES, LINKS, device_names, link_types
from topologies.schema import DeviceSpec

OWN_FILE = "the machine's file"
ASSUMED = "simulator/projection/stack.py: the slowdown measured by Hetu-Galvatron, others assumed, or fitted as it says"
SELDOM = ("name", "pci_ids", "nvlinks", "measured")
_LINE = re.compile(r"(?P<key>\w+):\s*(?P<value>[^#]*?)\s*(?:# *(?P<source>.*))?")
_LINK = re.compile(r"- \{name: (?P<key>[\w-]+),.*\}\s*(?:# *(?P<source>.*))?")


def machine_inputs(machine: Machine | None) -> Iterator[Figure]:
    """Yield the figures of a machine's types of devices, then of links; none where no machine is known."""
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


def stack_inputs(name: str, stack: Stack) -> Iterator[Figure]:
    """Yield the figures of a software stack."""
    for key, value in asdict(stack).items():
        for inner, figure in value.items() if isinstance(value, dict) else ((key, value),):
            if figure is not None:
                yield Figure(f"stack {name}", inner, str(figure), ASSUMED)


def _figures(spec: DeviceSpec, sources: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield a device's figures: their names, their keys in the file, and values as text; a record's by itself."""
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
    """Return what the comment on a key's line says, else those above it, else those of its section (`# ---`)."""
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
