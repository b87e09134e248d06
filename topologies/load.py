"""From a topology file to a checked `Machine`."""

from __future__ import annotations

import warnings
from pathlib import Path

from topologies.build import build
from topologies.errors import TopologyError, TopologyWarning
from topologies.expand import expand
from topologies.library import MachineFile, find_machine
from topologies.machine import Machine
from topologies.plausibility import doubts
from topologies.reading import decode_record, encode_record, read_record
from topologies.schema import TopologyFile


def load_topology(name_or_path: str | Path) -> Machine:
    """Load a machine from a file, or one of the package's own by name, with or without its suffix.

    Raises `TopologyError` in one line: where, what was expected, what was found. Figures that can hardly be meant
    (10.5 for 10.5e9 bytes/s) are warned of, by `TopologyWarning`.

    >>> machine = load_topology("p2.8xlarge")
    >>> len(machine.devices)
    8
    """
    machine, _ = _load(name_or_path)
    return machine


def full_text(name_or_path: str | Path) -> str:
    """Return a machine's file written out in full, as YAML: every device and link by itself, all types in it.

    Raises and warns as `load_topology` does.
    """
    _, full = _load(name_or_path)
    return encode_record(full)


def parse_topology(text: str, source: str = "topology") -> Machine:
    """Load a machine from YAML text; `source` names it in errors. Nothing is warned of."""
    location = MachineFile(Path(), source)
    machine, _ = _Loading().machine(decode_record(text, source, TopologyFile), location)
    return machine


def _load(name_or_path: str | Path) -> tuple[Machine, TopologyFile]:
    location, loading = find_machine(name_or_path), _Loading()
    loaded = loading.machine(read_record(location.path, TopologyFile), location)
    for doubt in loading.doubts:
        warnings.warn(doubt, TopologyWarning, stacklevel=3)
    return loaded


class _Loading:
    """Reads a file and those of its nodes, each once, and remembers what can hardly be meant in any of them."""

    def __init__(self) -> None:
        self.doubts: list[str] = []
        self._read: dict[MachineFile, TopologyFile] = {}

    def machine(self, file: TopologyFile, location: MachineFile) -> tuple[Machine, TopologyFile]:
        try:
            full = self._full(file, location, (location,))
            return build(full), full
        except TopologyError as error:
            raise TopologyError(f"{location.source}: {error}") from error

    def _full(self, file: TopologyFile, location: MachineFile, within: tuple[MachineFile, ...]) -> TopologyFile:
        self.doubts += (f"{location.source}: {doubt}" for doubt in doubts(file))

        def open_machine(name: str) -> TopologyFile:
            inner = find_machine(name, location.path.parent)
            if inner in within:
                raise TopologyError(f"$.nodes: expected another machine than those around it, found {name!r}")
            if inner not in self._read:
                self._read[inner] = self._full(read_record(inner.path, TopologyFile), inner, (*within, inner))
            return self._read[inner]

        return expand(file, location.number, open_machine)
