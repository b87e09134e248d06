"""The package's own machines, types of devices and types of links, by name.

A machine whose file is called `NAME-K.yaml` is a family: any number may stand for K, which then counts what the file
writes as `thing*K`.
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
    """A machine's file, how errors name it (which makes no other), and the number asked for where it is a family's."""

    path: Path
    source: str = field(compare=False)
    number: int | None = None


def available() -> tuple[str, ...]:
    """List the names of the package's own machines; of a family with a K for the number."""
    return _names(MACHINES)


def device_names() -> tuple[str, ...]:
    """List the names of the package's own types of devices."""
    return _names(DEVICES)


def find_machine(name_or_path: str | Path, folder: Path = Path()) -> MachineFile:
    """Find a machine: a file, from `folder`, or one of the package's own by name, with or without its suffix."""
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
        f"{name_or_path}: expected a topology file or one of {own_names}, or a line such as '4 x 8 x h100, 400G'; "
        f"found none of these{hint}"
    )


@cache
def device_type(name: str) -> DeviceSpec:
    """Return one of the package's types of devices; raises `TopologyError` for another name."""
    if name not in device_names():
        raise TopologyError(f"expected a type of device ({', '.join(device_names())}), found {name!r}")
    return read_record(DEVICES / f"{name}.yaml", DeviceSpec)


def link_type(name: str) -> LinkType:
    """Return one of the package's types of links; raises `TopologyError` for another name."""
    if name not in link_types():
        raise TopologyError(f"expected a type of link ({', '.join(link_types())}), found {name!r}")
    return link_types()[name]


@cache
def link_types() -> Mapping[str, LinkType]:
    """Return the package's types of links by name."""
    return {kind.name: kind for kind in read_record(LINKS, LinkTypesFile).link_types}


@cache
def _names(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in folder.glob("*.yaml")))
