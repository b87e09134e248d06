"""A topology file written out in full: one entry per thing, nodes taken apart, types from the package's library.

`gpu*8` names gpu0 to gpu7, `node*2/nic*4` eight things. Where an entry has several such names, the longest list
is matched with the others in equal blocks: `ends: [gpu*8, board*4]` links gpu0 and gpu1 to board0.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from topologies import library
from topologies.errors import TopologyError
from topologies.schema import (
    FORMAT,
    DeviceEntry,
    DeviceSpec,
    LinkEntry,
    LinkType,
    MemoryEntry,
    ProcessorEntry,
    SwitchEntry,
    TopologyFile,
)

MOST = 1 << 17
"""More entries than any machine that can be simulated has; a few stars could otherwise ask for billions."""

_STAR = re.compile(r"\*(\d+|K\b)")
_REFERENCES = ("name", "ends", "processor", "memory", "staged_in")
Kind = TypeVar("Kind", DeviceSpec, LinkType)
Entry = TypeVar("Entry", DeviceEntry, SwitchEntry, ProcessorEntry, MemoryEntry, LinkEntry)
Placed = tuple[str, Entry]  # where in the file an entry comes from, and the entry


@dataclass(frozen=True, slots=True)
class FullFile:
    """Every entry by itself, with its place in the file it comes from; types by name."""

    name: str
    description: str
    device_types: dict[str, DeviceSpec]
    link_types: dict[str, LinkType]
    devices: tuple[Placed[DeviceEntry], ...]
    processors: tuple[Placed[ProcessorEntry], ...]
    memories: tuple[Placed[MemoryEntry], ...]
    switches: tuple[Placed[SwitchEntry], ...]
    links: tuple[Placed[LinkEntry], ...]

    def as_file(self) -> TopologyFile:
        """Return the same as a file without stars, nodes and types from elsewhere."""
        entries = {key: tuple(entry for _, entry in getattr(self, key)) for key in _ENTRIES}
        types = {key: tuple(getattr(self, key).values()) for key in ("device_types", "link_types")}
        return TopologyFile(format=FORMAT, name=self.name, description=self.description, **(types | entries))


_ENTRIES = ("devices", "processors", "memories", "switches", "links")


def expand(file: TopologyFile, number: int | None, open_machine: Callable[[str], FullFile]) -> FullFile:
    """Write a file out in full; `number` stands for a family's K, `open_machine` finds the machines of its nodes."""
    parts: dict[str, list[Any]] = {key: [] for key in _ENTRIES}
    types: dict[str, Any] = {
        "device_types": _unique_types("device_types", file.device_types),
        "link_types": _unique_types("link_types", file.link_types),
    }
    for i, entry in enumerate(file.nodes):
        place, inner = f"$.nodes[{i}]", open_machine(entry.machine)
        _add_types(place, types, inner)
        _add_nodes(place, parts, inner, _spread(f"{place}.name", entry.name, number))
    for key, entries in parts.items():
        entries.extend(_spread_all(key, getattr(file, key), file.format, number))
    _add_library_types(types, parts)
    name, description = (_numbered(text, number) for text in (file.name, file.description))
    return FullFile(name=name, description=description, **(types | {key: tuple(parts[key]) for key in _ENTRIES}))


def _add_types(place: str, types: dict[str, Any], inner: FullFile) -> None:
    for key, known in types.items():
        for kind in getattr(inner, key).values():
            if known.setdefault(kind.name, kind) != kind:
                raise TopologyError(f"{place}: expected one meaning of {kind.name!r} in $.{key}, found two")


def _add_nodes(place: str, parts: dict[str, list[Any]], inner: FullFile, nodes: Sequence[str]) -> None:
    _check_size(place, len(nodes) * sum(len(getattr(inner, key)) for key in _ENTRIES))
    for node in nodes:
        for key, entries in parts.items():
            entries.extend((f"{place} {where}", _prefixed(entry, node)) for where, entry in getattr(inner, key))


def _numbered(text: str, number: int | None) -> str:
    return text if number is None else re.sub(r"\bK\b", str(number), text)


def _spread_all(key: str, entries: Sequence[Entry], format: str, number: int | None) -> Iterator[tuple[str, Entry]]:
    total = 0
    for i, entry in enumerate(entries):
        place = f"$.{key}[{i}]"
        several = [entry] if format == "topology/1" else _spread_entry(place, entry, number)
        total += len(several)
        _check_size(f"$.{key}", total)
        yield from ((place, single) for single in several)


def _spread_entry(place: str, entry: Entry, number: int | None) -> list[Entry]:
    """One entry per thing that the names of this one stand for."""
    names: dict[str, list[list[str]]] = {}
    for field in _REFERENCES:
        if (value := getattr(entry, field, None)) is not None:
            texts = (value,) if isinstance(value, str) else value
            names[field] = [_spread(f"{place}.{field}", text, number) for text in texts]
    length = max(len(listed) for lists in names.values() for listed in lists)
    for field, lists in names.items():
        for listed in lists:
            if length % len(listed):
                raise TopologyError(
                    f"{place}.{field}: expected a number of names that divides {length}, found {len(listed)}"
                )

    def picked(field: str, i: int) -> Any:
        texts = tuple(listed[i * len(listed) // length] for listed in names[field])
        return texts if field == "ends" else texts[0]

    return [msgspec.structs.replace(entry, **{field: picked(field, i) for field in names}) for i in range(length)]


def _spread(place: str, name: str, number: int | None) -> list[str]:
    """Every name that `name` stands for, in order."""
    texts, counts = _STAR.split(name)[::2], []
    for star in _STAR.findall(name):
        if star == "K" and number is None:
            raise TopologyError(f"{place}: expected a number after the *, found {name!r}")
        counts.append(number if star == "K" and number is not None else int(star))
    size = 1
    for count in counts:
        if not 1 <= count <= MOST:
            raise TopologyError(f"{place}: expected 1 to {MOST} of each, found {name!r}")
        size *= count
    _check_size(place, size)
    ranges = itertools.product(*map(range, counts))
    return ["".join(itertools.chain(*zip(texts, (*map(str, indices), ""), strict=True))) for indices in ranges]


def _check_size(place: str, size: int) -> None:
    if size > MOST:
        raise TopologyError(f"{place}: expected at most {MOST} entries, found {size}")


def _prefixed(entry: Entry, node: str) -> Entry:
    def inside(value: Any) -> Any:
        return f"{node}/{value}" if isinstance(value, str) else tuple(map(inside, value))

    references = {field: getattr(entry, field, None) for field in _REFERENCES}
    return msgspec.structs.replace(
        entry, **{field: inside(value) for field, value in references.items() if value is not None}
    )


def _unique_types(key: str, kinds: Sequence[Kind]) -> dict[str, Kind]:
    check_unique((f"$.{key}[{i}].name", kind.name) for i, kind in enumerate(kinds))
    return {kind.name: kind for kind in kinds}


def check_unique(named: Iterable[tuple[str, str]]) -> None:
    """Raise `TopologyError` where a name, given with its place, occurs again."""
    first: dict[str, str] = {}
    for place, name in named:
        if name in first:
            raise TopologyError(f"{place}: expected a new name, found {name!r}, which is also at {first[name]}")
        first[name] = place


def _add_library_types(types: dict[str, Any], parts: dict[str, list[Any]]) -> None:
    for _, device in parts["devices"]:
        if device.type not in types["device_types"] and device.type in library.device_names():
            types["device_types"][device.type] = library.device_type(device.type)
    for _, link in parts["links"]:
        if link.type is not None and link.type not in types["link_types"] and link.type in library.link_types():
            types["link_types"][link.type] = library.link_types()[link.type]
