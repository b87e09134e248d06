"""Read and write records as YAML; every error is one line."""

from __future__ import annotations

import errno
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from tensor_partitioner.display import nearest
from topologies.schema import CHOICES, DeviceSpec, LinkType, LinkTypesFile, SoldMachine, SoldMachinesFile, TopologyError

T = TypeVar("T")

KINDS = {
    **{"float": "a number", "int": "a whole number", "str": "text", "bool": "true or false"},
    **{"object": "a mapping", "array": "a list"},
}
"""Names of the kinds of values, for errors."""

UNITS = {"bytes_per_s": " of bytes a second", "_bytes": " of bytes"}
"""Units of numbers, by the ending of their key."""


MOST_BYTES, MOST_TEXT, MOST_YAML, MOST_VALUES, MOST_DIGITS = 1 << 28, 1 << 24, 1 << 20, 1 << 18, 1 << 10
"""Limits of what is read: bytes of a file, those of a text of lines or of YAML, values of YAML, digits of a number."""


def read_record(path: Path, kind: type[T]) -> T:
    """Read and check one file; raise `TopologyError` with the file, the place, what was expected and what was found."""
    return decode_record(read_text(path), str(path), kind)


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return the content of a file. Raises OSError if it cannot be read, also because it has more than `most` bytes."""
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"expected at most {most} bytes, found more", str(path))
    return content


def read_text(path: Path) -> str:
    """Read a text file; raise `TopologyError` if that fails."""
    most = MOST_YAML if path.suffix in SUFFIXES else MOST_TEXT
    try:
        return read_bytes(path, most).decode("utf-8").replace("\r\n", "\n")
    except OSError as error:
        raise TopologyError(f"{path}: expected a readable file, found: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TopologyError(f"{path}: expected UTF-8 text, found byte {error.object[error.start]:#04x}") from error


def decode_record(text: str, source: str, kind: type[T]) -> T:
    """Decode YAML text; `source` names it in errors."""
    try:
        data = limited(yaml.load(text, Loader=_Loader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise TopologyError(f"{source}: expected YAML, found {' '.join(str(error).split())}") from error
    try:
        return msgspec.convert(data, kind)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise TopologyError(f"{source}: {_located(str(error), data)}") from error


def limited(data: T) -> T:
    """Return what a file contains. Raises ValueError if it is more than the file has: YAML may repeat a value."""
    if any(islice(_within(data), MOST_VALUES, None)):
        raise ValueError(f"more than {MOST_VALUES} values")
    return data


def _within(data: object) -> Iterator[bool]:
    """Yield True for a value and for each that it contains."""
    yield True
    for inner in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
        yield from _within(inner)


def encode_record(record: msgspec.Struct) -> str:
    """Return a record as YAML for `decode_record`, without defaults and with each list entry on one line."""
    return "".join(_lines(msgspec.to_builtins(record)))


def blocks_of(record: msgspec.Struct) -> str:
    """Return a record as YAML for `decode_record`, without defaults and with each value on one line."""
    text: str = yaml.safe_dump(msgspec.to_builtins(record), sort_keys=False, width=math.inf, allow_unicode=True)
    return text


def _lines(data: dict[str, Any]) -> Iterator[str]:
    for key, value in data.items():
        if isinstance(value, list | tuple):
            yield f"{key}:\n"
            yield from (f"  - {_flow(entry)}\n" for entry in value)
        else:
            yield f"{key}: {_flow(value)}\n"


def _flow(value: object) -> str:
    text: str = yaml.safe_dump(value, sort_keys=False, default_flow_style=True, width=math.inf, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")


class _Loader(yaml.SafeLoader):
    """A YAML loader that reads YAML 1.2 floats (`1e9` is a number) and refuses duplicate keys and endless numbers."""

    def integer(self, node: yaml.ScalarNode) -> int:
        """Return a whole number. Raises ValueError if it has more digits than any that a machine has."""
        if len(node.value) > MOST_DIGITS:
            raise ValueError(f"a number of more than {MOST_DIGITS} digits")
        return self.construct_yaml_int(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} twice in one mapping", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.integer)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def _located(message: str, data: object) -> str:
    """Turn msgspec's message into "place: expected ..., found ..."."""
    if isinstance(data, dict) and "/" in (kind := str(data.get("format", ""))) and not kind.startswith("topology/"):
        return f"expected a machine, found a file of format {kind!r}"
    expected, _, place = message.partition(" - at `")
    is_key = place.startswith("key` in")
    place = place.rpartition("`")[0].rpartition("`")[2] or "$"
    if is_key:
        return f"{place}: expected text for a key, found something else"
    if "unknown field" in expected or "missing required" in expected:
        expected = expected.replace("Object contains unknown field", "expected only known keys, found")
        expected = expected.replace("Object missing required field", "expected the key").replace("`", "'")
        return f"{place}: {expected}" + ("" if "found" in expected else ", found none")
    if "enum value" in expected:
        expected = " or ".join(map(repr, CHOICES[place.rpartition(".")[2].partition("[")[0]]))
    expected = expected.partition(", got ")[0]
    expected = expected.replace("Number out of range", "Expected a number that a float can hold")
    value = _value_at(data, place)
    expected = _in_words(expected.removeprefix("Expected "), place, is_text=value[0] in "'\"")
    return f"{place}: expected {expected}, found {value}".replace("`", "'")


def _in_words(expected: str, place: str, *, is_text: bool) -> str:
    """Name the expected kind of value in words; if text is given for a number of bytes, add an example."""
    unit = next((unit for ending, unit in UNITS.items() if place.endswith(ending)), "")

    def kinds(match: re.Match[str]) -> str:
        known = (KINDS.get(kind, kind) for kind in match[1].removesuffix(" | null").split(" | "))
        return " or ".join(known).replace("a number", f"a number{unit}")

    words = re.sub(r"`([^`]*)`", kinds, expected)
    return f"{words}, as 2.0e9" if unit and is_text else words


def _value_at(data: object, place: str) -> str:
    for attribute, index in re.findall(r"\.([^.\[]+)|\[([^\]]*)\]", place):
        if isinstance(data, dict):
            data = data.get(attribute) if attribute else "a key or value"
        elif isinstance(data, list):
            data = data[int(index)]
    text = "nothing" if data is None else repr(data)
    return text if len(text) <= 60 else f"{text[:57]}..."


# The package's own machines, device types and link types, by name.
#
# A machine in a file named `NAME-K.yaml` is a family: any number can replace K, which also counts what the file
# writes as `thing*K`.


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


@cache
def sold() -> Mapping[str, SoldMachine]:
    """Return the machines that the package knows by product name."""
    return {machine.name: machine for machine in read_record(FOLDER / "sold.yaml", SoldMachinesFile).sold}


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
    hint = nearest(str(name_or_path), (*sold(), *available()))
    raise TopologyError(
        f"{name_or_path}: expected a topology file, a name that `topo list` prints, or a line such as "
        f"'4 x 8 x h100, 400G', found none of these{hint}"
    )


@cache
def device_type(name: str) -> DeviceSpec:
    """Return a device type of the package; raise `TopologyError` if the name is unknown."""
    if name not in device_names():
        hint = nearest(name, device_names())
        listed = "" if hint else f" ({', '.join(device_names())})"
        raise TopologyError(f"expected a type of device{listed}, found {name!r}{hint}")
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
