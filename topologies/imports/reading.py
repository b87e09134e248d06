"""A description's kind, and the machine that it describes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from topologies.errors import TopologyError
from topologies.imports.hwloc import read_hwloc
from topologies.imports.nccl import read_nccl
from topologies.imports.parts import Parts
from topologies.imports.smi import read_smi
from topologies.imports.xml import parse_xml
from topologies.load import parse_topology
from topologies.machine import Machine
from topologies.reading import encode_record, read_text
from topologies.schema import FORMAT, TopologyFile

_XML = {"system": ("NCCL's topology XML", read_nccl), "topology": ("hwloc's XML", read_hwloc)}


@dataclass(frozen=True, slots=True)
class Imported:
    """A machine, its file in this package's format, and what had to be assumed."""

    machine: Machine
    text: str
    notes: tuple[str, ...]


def import_machine(path: str | Path, device: str | None = None) -> Imported:
    """Import a description; `device` names a type from `topologies/devices` for all of its GPUs.

    Raises `TopologyError` in one line.
    """
    path = Path(path)
    text, parts = read_text(path), Parts(device)
    try:
        kind = _read(text, parts)
        file = _file(path, kind, parts)
        notes = tuple(parts.notes)
        written = "".join(f"# {note}\n" for note in (f"Imported from {path.name!r}, {kind}.", *notes))
        written += encode_record(file)
        return Imported(parse_topology(written, "as imported"), written, notes)
    except TopologyError as error:
        raise TopologyError(f"{path}: {error}") from error


def _read(text: str, parts: Parts) -> str:
    if not text.lstrip().startswith("<"):
        read_smi(text, parts)
        return "what nvidia-smi topo -m prints"
    root = parse_xml(text)
    if root.tag not in _XML:
        raise TopologyError(f"expected <system> (NCCL) or <topology> (hwloc), found <{root.tag}>")
    kind, read = _XML[root.tag]
    read(root, parts)
    return kind


def _file(path: Path, kind: str, parts: Parts) -> TopologyFile:
    return TopologyFile(
        format=FORMAT,
        name=path.stem,
        description=f"imported from {kind}: {len(parts.devices)} GPUs",
        link_types=tuple(parts.link_types.values()),
        devices=tuple(parts.devices),
        switches=tuple(parts.switches),
        links=tuple(parts.links),
    )
