"""A topology file written out in full: one entry per thing, nodes taken apart, types from the package's library.

`gpu*8` names gpu0 to gpu7, `node*2/nic*4` eight things. Where an entry has several such names, the longest list
is matched with the others in equal blocks: `ends: [gpu*8, board*4]` links gpu0 and gpu1 to board0.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
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

ENTRIES = ("devices", "processors", "memories", "switches", "links")
TYPES: Mapping[str, tuple[str, Callable[[str], DeviceSpec | LinkType]]] = {
    "device_types": ("devices", library.device_type),
    "link_types": ("links", library.link_type),
}
"""The kinds of types, which entries have them, and how the package's are found."""

_STAR = re.compile(r"\*(\d+|K\b)")
_REFERENCES = ("name", "ends", "processor", "memory", "staged_in")
Entry = TypeVar("Entry", DeviceEntry, SwitchEntry, ProcessorEntry, MemoryEntry, LinkEntry)


def expand(file: TopologyFile, number: int | None, open_machine: Callable[[str], TopologyFile]) -> TopologyFile:
    """Write a file out in full, without stars and nodes, every type in it.

    `number` stands for a family's K, `open_machine` finds the machines of nodes, written out in full.
    """
    entries: dict[str, list[Any]] = {key: [] for key in ENTRIES}
    types: dict[str, dict[str, Any]] = {}
    collectives = dict.fromkeys(file.collectives)
    for key in TYPES:
        check_unique(key, (kind.name for kind in getattr(file, key)))
        types[key] = {kind.name: kind for kind in getattr(file, key)}
    for i, node in enumerate(file.nodes):
        place, inner = f"$.nodes[{i}]", open_machine(node.machine)
        _add_types(place, types, inner)
        collectives |= dict.fromkeys(inner.collectives)
        _add_entries(place, entries, inner, _spread(f"{place}.name", node.name, number))
    for key, listed in entries.items():
        for i, entry in enumerate(getattr(file, key)):
            place = f"$.{key}[{i}]"
            listed.extend([entry] if file.format == "topology/1" else _spread_entry(place, entry, number))
            _check_size(place, len(listed))
    _add_library_types(types, entries)
    return msgspec.structs.replace(
        file,
        format=FORMAT,
        name=_numbered(file.name, number),
        description=_numbered(file.description, number),
        nodes=(),
        collectives=tuple(collectives),
        **{key: tuple(known.values()) for key, known in types.items()},
        **{key: tuple(listed) for key, listed in entries.items()},
    )


def place_of(key: str, entry: DeviceEntry | LinkEntry | SwitchEntry) -> str:
    """Name an entry of a file that is written out, for errors."""
    return f"$.{key}[{link_name(entry) if isinstance(entry, LinkEntry) else entry.name}]"


def link_name(link: LinkEntry) -> str:
    """Return a link's name, or that of its ends."""
    return link.name or "-".join(link.ends)


def check_unique(key: str, names: Iterable[str]) -> None:
    """Raise `TopologyError` where a name occurs again."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise TopologyError(f"$.{key}: expected every name once, found {name!r} twice")
        seen.add(name)


def _add_types(place: str, types: dict[str, dict[str, Any]], inner: TopologyFile) -> None:
    for key, known in types.items():
        for kind in getattr(inner, key):
            if known.setdefault(kind.name, kind) != kind:
                raise TopologyError(f"{place}: expected one meaning of {kind.name!r} in $.{key}, found two")


def _add_entries(place: str, entries: dict[str, list[Any]], inner: TopologyFile, nodes: Sequence[str]) -> None:
    _check_size(place, len(nodes) * sum(len(getattr(inner, key)) for key in ENTRIES))
    for node, (key, listed) in itertools.product(nodes, entries.items()):
        listed += [_prefixed(entry, node) for entry in getattr(inner, key)]


def _add_library_types(types: dict[str, dict[str, Any]], entries: dict[str, list[Any]]) -> None:
    for key, (users, find) in TYPES.items():
        for entry in entries[users]:
            if entry.type is not None and entry.type not in types[key]:
                try:
                    types[key][entry.type] = find(entry.type)
                except TopologyError as error:
                    place = f"{place_of(users, entry)}.type"
                    raise TopologyError(f"{place}: {error}, which is not in $.{key} either") from error


def _numbered(text: str, number: int | None) -> str:
    return text if number is None else re.sub(r"\bK\b", str(number), text)


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
    texts, counts, size = _STAR.split(name)[::2], [], 1
    for star in _STAR.findall(name):
        if star == "K" and number is None:
            raise TopologyError(f"{place}: expected a number after the *, found {name!r}")
        counts.append(number if star == "K" and number is not None else int(star))
        if not 1 <= counts[-1] <= MOST:
            raise TopologyError(f"{place}: expected 1 to {MOST} of each, found {name!r}")
        size *= counts[-1]
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
