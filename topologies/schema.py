"""The records of a topology file (YAML) and their checks by key; how the parts fit together is `machine.py`'s.

Every number carries its unit in its key. Bytes are bytes (a GB is 1e9), seconds are seconds.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml

from topologies.errors import TopologyError
from topologies.machine import WORKSPACE_BYTES

FORMAT = "topology/1"

Positive = Annotated[float, msgspec.Meta(gt=0, le=1e30)]
NotNegative = Annotated[float, msgspec.Meta(ge=0, le=1e30)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Name = Annotated[str, msgspec.Meta(min_length=1)]


class _Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A frozen record; unknown keys are refused."""


class Efficiency(_Record, frozen=True, kw_only=True):
    """The share of the roofline that kernels of each operator category attain."""

    matmul: Share
    convolution: Share
    reduction: Share
    elementwise: Share
    other: Share


class Peak(_Record, frozen=True, kw_only=True):
    """Floating-point operations per second by element type; at least one is given."""

    float16: Positive | None = None
    bfloat16: Positive | None = None
    float32: Positive | None = None
    float64: Positive | None = None


class DeviceType(_Record, frozen=True, kw_only=True):
    """What one device of this type can do on its own.

    `memory_bytes` belongs to devices with a memory of their own; `reserved_bytes` of it are taken before anything runs,
    and a kernel that needs a workspace takes at most `workspace_bytes`, where parts as small as its data allow.
    `message_core_s_per_byte` is the processor time that sending or receiving one byte costs where the processor does
    the copying. Traffic between other devices passes through a device only if it `forwards_traffic`.
    """

    name: Name
    peak_flop_per_s: Peak
    memory_bandwidth_bytes_per_s: Positive
    efficiency: Efficiency
    launch_latency_s: NotNegative
    memory_bytes: Positive | None = None
    reserved_bytes: NotNegative = 0.0
    workspace_bytes: NotNegative = WORKSPACE_BYTES
    cores: Positive = 1.0
    message_core_s_per_byte: NotNegative = 0.0
    forwards_traffic: bool = False


class DeviceEntry(_Record, frozen=True, kw_only=True):
    """A device: worker w runs on the w-th. It may share a processor and a memory with others."""

    name: Name
    type: Name
    processor: Name | None = None
    memory: Name | None = None


class ProcessorEntry(_Record, frozen=True, kw_only=True):
    """A processor that several devices share; each running kernel occupies its device's `cores` of it."""

    name: Name
    cores: Positive


class MemoryEntry(_Record, frozen=True, kw_only=True):
    """A memory that several devices share."""

    name: Name
    memory_bytes: Positive
    memory_bandwidth_bytes_per_s: Positive


class SwitchEntry(_Record, frozen=True, kw_only=True):
    """A node that only passes traffic on; with `staged_in`, by writing it to that memory and reading it back."""

    name: Name
    staged_in: Name | None = None


class LinkEntry(_Record, frozen=True, kw_only=True):
    """A link between two nodes: `bandwidth` holds for each direction, or is shared by both."""

    ends: tuple[Name, Name]
    bandwidth_bytes_per_s: Positive
    direction: Literal["each", "shared"]
    latency_s: NotNegative
    name: Name | None = None


class TopologyFile(_Record, frozen=True, kw_only=True):
    """A whole topology file."""

    format: Literal["topology/1"]
    name: Name
    description: str
    device_types: tuple[DeviceType, ...]
    devices: Annotated[tuple[DeviceEntry, ...], msgspec.Meta(min_length=1)]
    processors: tuple[ProcessorEntry, ...] = ()
    memories: tuple[MemoryEntry, ...] = ()
    switches: tuple[SwitchEntry, ...] = ()
    links: tuple[LinkEntry, ...] = ()


def read_topology_file(path: Path) -> TopologyFile:
    """Read and check one file; raises `TopologyError` with the file, the place, what was expected and found."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise TopologyError(f"{path}: expected a readable file, found: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TopologyError(f"{path}: expected UTF-8 text, found byte {error.object[error.start]:#04x}") from error
    return decode_topology(text, str(path))


def decode_topology(text: str, source: str) -> TopologyFile:
    """Decode YAML text; `source` names it in errors."""
    try:
        data = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise TopologyError(f"{source}: expected YAML, found {' '.join(str(error).split())}") from error
    try:
        return msgspec.convert(data, TopologyFile)
    except msgspec.ValidationError as error:
        raise TopologyError(f"{source}: {_located(str(error), data)}") from error


class _Loader(yaml.SafeLoader):
    """YAML with 1.2's floats (`1e9` is a number) that refuses a key written twice."""

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


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def _located(message: str, data: object) -> str:
    """Turn msgspec's message into: place: expected, found."""
    expected, _, place = message.partition(" - at `")
    is_key = place.startswith("key` in")
    place = place.rpartition("`")[0].rpartition("`")[2] or "$"
    if is_key:
        return f"{place}: expected text for a key, found something else"
    if "unknown field" in expected or "missing required" in expected:
        expected = expected.replace("Object contains unknown field", "expected only known keys, found")
        expected = expected.replace("Object missing required field", "expected the key").replace("`", "'")
        return f"{place}: {expected}" + ("" if "found" in expected else ", found none")
    expected = expected.partition(", got ")[0]
    expected = expected.replace("Number out of range", "Expected a number that a float can hold")
    expected = expected[:1].lower() + expected[1:]
    return f"{place}: {expected}, found {_value_at(data, place)}".replace("`", "'")


def _value_at(data: object, place: str) -> str:
    for attribute, index in re.findall(r"\.([^.\[]+)|\[([^\]]*)\]", place):
        if isinstance(data, dict):
            data = data.get(attribute) if attribute else "a key or value"
        elif isinstance(data, list):
            data = data[int(index)]
    text = "nothing" if data is None else repr(data)
    return text if len(text) <= 60 else f"{text[:57]}..."
