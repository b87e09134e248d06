"""From a topology file to a checked `Machine`."""

from __future__ import annotations

import warnings
from pathlib import Path

from topologies.build import build
from topologies.errors import TopologyError, TopologyWarning
from topologies.expand import FullFile, expand
from topologies.library import Found, find_machine
from topologies.machine import Machine
from topologies.plausibility import doubts
from topologies.reading import decode_record, encode_record, read_record
from topologies.schema import TopologyFile

DEEPEST = 4  # machines within machines


def load_topology(name_or_path: str | Path) -> Machine:
    """Load a machine from a file, or one of the package's own by name, with or without its suffix.

    Raises `TopologyError` in one line: where, what was expected, what was found. Figures that can hardly be meant
    (10.5 for 10.5e9 bytes/s) are warned of, by `TopologyWarning`.
    """
    found = find_machine(name_or_path)
    file = read_record(found.path, TopologyFile)
    machine = _machine(file, found)
    for doubt in doubts(file):
        warnings.warn(f"{found.source}: {doubt}", TopologyWarning, stacklevel=2)
    return machine


def parse_topology(text: str, source: str = "topology") -> Machine:
    """Load a machine from YAML text; `source` names it in errors."""
    return _machine(decode_record(text, source, TopologyFile), Found(Path(), source))


def full_text(name_or_path: str | Path) -> str:
    """Return a machine's file written out in full, as YAML: every device and link by itself, all types in it."""
    found = find_machine(name_or_path)
    return encode_record(_full(read_record(found.path, TopologyFile), found, 1).as_file())


def _machine(file: TopologyFile, found: Found) -> Machine:
    try:
        return build(_full(file, found, 1))
    except TopologyError as error:
        raise TopologyError(f"{found.source}: {error}") from error


def _full(file: TopologyFile, found: Found, depth: int) -> FullFile:
    def open_machine(name: str) -> FullFile:
        if depth == DEEPEST:
            raise TopologyError(f"$.nodes: expected machines within machines at most {DEEPEST} deep, found {name!r}")
        inner = find_machine(name, found.path.parent)
        return _full(read_record(inner.path, TopologyFile), inner, depth + 1)

    return expand(file, found.number, open_machine)
