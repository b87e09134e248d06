"""The package's own machines, device types and link types, by name.

A machine in a file named `NAME-K.yaml` is a family: any number can replace K, which also counts what the file writes as
`thing*K`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tensor_partitioner.display import nearest
from topologies.errors import TopologyError
from topologies.reading import read_record
from topologies.schema import DeviceSpec, LinkType, LinkTypesFile

FOLDER = Path(__file__).parent
MACHINES = FOLDER / "machines"
DEVICES = FOLDER / "devices"
LINKS = FOLDER / "links.yaml"
SUFFIXES = (".yaml", ".yml")
_NUMBERED = re.compile(r"(.+-)([1-9]\d{0,3})")


@dataclass(frozen=True, slots=True)
class MachineFile:
    """A machine's file, its name in errors (not compared), and the number requested if it is a family."""

    path: Path
    source: str = field(compare=False)
    number: int | None = None


def available() -> tuple[str, ...]:
    """Return the names of the package's own machines; a family's name ends in K."""
    return _names(MACHINES)


def device_names() -> tuple[str, ...]:
    """Return the names of the package's own device types."""
    return _names(DEVICES)


def find_machine(name_or_path: str | Path, folder: Path = Path()) -> MachineFile:
    """Find a machine: a file relative to `folder`, or a packaged machine by name, with or without a suffix.

    Raises `TopologyError` if there is none.
    """
    path = Path(name_or_path)
    if (folder / path).is_file():
        return MachineFile((folder / path).resolve(), str(folder / path))
    stem = path.stem if path.suffix in SUFFIXES else path.name
    numbered = _NUMBERED.fullmatch(stem)
    if path.parent == Path():
        if (file := MACHINES / f"{stem}.yaml").is_file() and not stem.endswith("-K"):
            return MachineFile(file, file.name)
        if numbered and (family := MACHINES / f"{numbered[1]}K.yaml").is_file():
            return MachineFile(family, family.name, int(numbered[2]))
    if stem.endswith("-K") and stem in available():
        raise TopologyError(f"{name_or_path}: expected a number instead of K, as in {stem[:-1]}16; found none")
    own_names = ", ".join(available())
    hint = nearest(str(name_or_path), available())
    raise TopologyError(
        f"{name_or_path}: expected a topology file or one of {own_names}, or a line such as '4 x 8 x h100, 400G', "
        f"found none of these{hint}"
    )


@cache
def device_type(name: str) -> DeviceSpec:
    """Return a device type of the package; raise `TopologyError` if the name is unknown."""
    if name not in device_names():
        raise TopologyError(f"expected a type of device ({', '.join(device_names())}), found {name!r}")
    return read_record(DEVICES / f"{name}.yaml", DeviceSpec)


def link_type(name: str) -> LinkType:
    """Return a link type of the package; raise `TopologyError` if the name is unknown."""
    if name not in link_types():
        raise TopologyError(f"expected a type of link ({', '.join(link_types())}), found {name!r}")
    return link_types()[name]


@cache
def link_types() -> Mapping[str, LinkType]:
    """Return the package's link types by name."""
    return {kind.name: kind for kind in read_record(LINKS, LinkTypesFile).link_types}


@cache
def _names(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in folder.glob("*.yaml")))
