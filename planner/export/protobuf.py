"""Messages of protobuf from the text of a .proto file, of what such files have in the simplest case."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message
from google.protobuf.proto import parse_length_prefixed

from planner.errors import InputError

Field = descriptor_pb2.FieldDescriptorProto
LABELS = {"repeated": Field.LABEL_REPEATED, "": Field.LABEL_OPTIONAL}
_COMMENT = re.compile(r"//[^\n]*")
_BLOCK = re.compile(r"(message|enum)\s+(\w+)\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
_ONEOF = re.compile(r"oneof\s+(\w+)\s*\{([^{}]*)\}")
_FIELD = re.compile(r"(repeated|)\s*(\w+)\s+(\w+)\s*=\s*(\d+)\s*;")
_VALUE = re.compile(r"(\w+)\s*=\s*(\d+)\s*;")
_PACKAGE = re.compile(r"package\s+(\w+)\s*;")


def messages(path: Path) -> Mapping[str, type[Message]]:
    """Return the messages that a file defines, by name: fields of numbers, text and each other, lists, a oneof."""
    text = _COMMENT.sub("", path.read_text())
    package = _PACKAGE.search(text)
    file = descriptor_pb2.FileDescriptorProto(name=path.name, package=package[1] if package else "", syntax="proto3")
    for kind, name, body in _BLOCK.findall(text):
        if kind == "enum":
            values = (
                descriptor_pb2.EnumValueDescriptorProto(name=value, number=int(number))
                for value, number in _VALUE.findall(body)
            )
            file.enum_type.add(name=name, value=values)
    enums = {enum.name for enum in file.enum_type}
    for kind, name, body in _BLOCK.findall(text):
        if kind == "message":
            _add_message(file, name, body, enums)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    descriptors = (
        pool.FindMessageTypeByName(f"{file.package}.{message.name}".lstrip(".")) for message in file.message_type
    )
    return {descriptor.name: message_factory.GetMessageClass(descriptor) for descriptor in descriptors}


def _add_message(file: Any, name: str, body: str, enums: Iterable[str]) -> None:
    message = file.message_type.add(name=name)
    for oneof, inner in _ONEOF.findall(body):
        message.oneof_decl.add(name=oneof)
        for field in _FIELD.findall(inner):
            _add_field(message, file.package, field, enums).oneof_index = len(message.oneof_decl) - 1
    for field in _FIELD.findall(_ONEOF.sub("", body)):
        _add_field(message, file.package, field, enums)


def _add_field(message: Any, package: str, field: tuple[str, str, str, str], enums: Iterable[str]) -> Any:
    label, kind, name, number = field
    added = message.field.add(name=name, number=int(number), label=LABELS[label])
    scalar = f"TYPE_{kind.upper()}"
    if scalar in Field.Type.keys():  # noqa: SIM118 (a wrapper of protobuf's, not a dict)
        added.type = Field.Type.Value(scalar)
    else:
        added.type = Field.TYPE_ENUM if kind in enums else Field.TYPE_MESSAGE
        added.type_name = f".{package}.{kind}"
    return added


def read_delimited(content: bytes, kinds: Iterator[type[Message]], where: object) -> Iterator[Any]:
    """Yield the messages of a file, each of the next of some kinds; InputError where it is cut or holds others."""
    stream = BytesIO(content)
    try:
        while (message := parse_length_prefixed(next(kinds), stream)) is not None:
            yield message
    except (DecodeError, EOFError, ValueError) as error:
        raise InputError(f"{where}: expected whole messages behind their lengths, found other bytes") from error
