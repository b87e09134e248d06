"""Write programs as MLCommons' Chakra execution traces, schema 1.0, one file per worker.

A kernel is a COMP_NODE with its operations and bytes. A message is a COMM_SEND_NODE and its peer's COMM_RECV_NODE. A
collective of a group is a COMM_COLL_NODE; its attribute `pair_bytes`, which is not part of Chakra, gives the bytes sent
to every member. A node depends on its worker's last kernel and on everything awaited since.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message
from google.protobuf.proto import serialize_length_prefixed

from planner.export.targets import TraceFormat
from planner.files import write_file
from planner.graph.ir import ITEM_BYTES
from planner.layout.communication import Collective, Group
from planner.program.in_order import program_in_order
from planner.program.tasks import Compute, Program, Receive, Send, Task, WorkerProgram

Field = descriptor_pb2.FieldDescriptorProto
LABELS = {"repeated": Field.LABEL_REPEATED, "": Field.LABEL_OPTIONAL}
_COMMENT = re.compile(r"//[^\n]*")
_BLOCK = re.compile(r"(message|enum)\s+(\w+)\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
_ONEOF = re.compile(r"oneof\s+(\w+)\s*\{([^{}]*)\}")
_FIELD = re.compile(r"(repeated|)\s*(\w+)\s+(\w+)\s*=\s*(\d+)\s*;")
_VALUE = re.compile(r"(\w+)\s*=\s*(\d+)\s*;")
_PACKAGE = re.compile(r"package\s+(\w+)\s*;")


def messages(path: Path) -> Mapping[str, type[Message]]:
    """Return the message classes that a .proto file defines, by name.

    Supports scalar, text, enum, message and repeated fields, and oneofs.
    """
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
        for declared in _FIELD.findall(inner):
            _add_field(message, file.package, declared, enums).oneof_index = len(message.oneof_decl) - 1
    for declared in _FIELD.findall(_ONEOF.sub("", body)):
        _add_field(message, file.package, declared, enums)


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


KINDS = messages(Path(__file__).parent / "chakra.proto")
VERSION = "1.0"
COMPUTE, SEND, RECEIVE, COLLECTIVE = 4, 5, 6, 7
OPERATIONS = {
    "all-reduce": 0,
    "reduce": 1,
    "all-gather": 2,
    "broadcast": 5,
    "all-to-all": 6,
    "reduce-scatter": 7,
}
"""Chakra's numbers of collective operations."""

GROUP = "process_group:"
"""Prefix of the metadata attribute that lists the ranks of a group; the group's name follows."""


def trace_path(path: Path, worker: int) -> Path:
    """Return a worker's file: `trace.3.et` for `trace.et`."""
    return path.with_name(f"{path.stem}.{worker}.et")


def write_traces(program: Program, path: Path) -> list[Path]:
    """Write one file per worker next to `path` and return the files; every micro-batch has its own nodes."""
    written = []
    for worker in program_in_order(program).workers:
        file, stream = trace_path(path, worker.worker), BytesIO()
        _Writer(worker, stream).write()
        write_file(file, stream.getvalue())
        written.append(file)
    return written


@dataclass(slots=True)
class _Writer:
    """Write one worker's nodes; each depends on the last kernel and everything awaited since."""

    worker: WorkerProgram
    stream: BytesIO
    number: int = 0
    computed: list[int] = field(default_factory=list)
    waited: list[int] = field(default_factory=list)
    under_way: dict[int, list[int]] = field(default_factory=dict)

    def write(self) -> None:
        """Write the whole file."""
        metadata: Any = KINDS["GlobalMetadata"](version=VERSION)
        metadata.attr.add(name="rank", int32_val=self.worker.worker)
        for name, workers in sorted(self._groups().items()):
            metadata.attr.add(name=GROUP + name).int32_list.values.extend(workers)
        serialize_length_prefixed(metadata, self.stream)
        for task in self.worker.tasks:
            self._task(task)

    def _groups(self) -> dict[str, tuple[int, ...]]:
        sends = (task for task in self.worker.tasks if isinstance(task, Send) and task.collective is not None)
        groups = (_group_of(task.collective, self.worker.worker) for task in sends)
        return {group_name(group.workers): group.workers for group in groups if group is not None}

    def _task(self, task: Task) -> None:
        if isinstance(task, Compute):
            self._compute(task)
        elif isinstance(task, Send | Receive):
            group = _group_of(task.collective, self.worker.worker)
            if group is None:
                self._messages(task)
            elif isinstance(task, Send) and task.collective is not None:
                self._collective(task, task.collective, group)
        else:
            self.waited += self.under_way.pop(task.transfer, [])

    def _compute(self, task: Compute) -> None:
        number = self._node(task.title, COMPUTE, num_ops=int(task.operations), tensor_size=task.touched_bytes)
        self.computed, self.waited = [number], []

    def _messages(self, task: Send | Receive) -> None:
        me, kind = self.worker.worker, SEND if isinstance(task, Send) else RECEIVE
        name = self.worker.buffers[task.buffer].name
        for message in task.messages:
            ends = (me, message.peer) if kind == SEND else (message.peer, me)
            sizes = {"comm_src": ends[0], "comm_dst": ends[1], "comm_size": message.nbytes, "comm_tag": task.transfer}
            self.under_way.setdefault(task.transfer, []).append(self._node(name, kind, **sizes))

    def _collective(self, task: Send, together: Collective, group: Group) -> None:
        sent = {message.peer: message.nbytes for message in task.messages}
        number = self._node(
            self.worker.buffers[task.buffer].name,
            COLLECTIVE,
            comm_type=OPERATIONS[together.kind],
            comm_size=self._payload(task, together, group),
            comm_tag=task.transfer,
            pg_name=group_name(group.workers),
            pair_bytes=[sent.get(worker, 0) for worker in group.workers],
        )
        self.under_way.setdefault(task.transfer, []).append(number)

    def _payload(self, task: Send, together: Collective, group: Group) -> int:
        """Return the payload of an operation in bytes; for an all-gather, the worker's own part."""
        if together.kind == "all-gather":
            return max((message.nbytes for message in task.messages), default=0)
        return group.elements * ITEM_BYTES[self.worker.buffers[task.buffer].dtype]

    def _node(self, name: str, kind: int, **values: Any) -> int:
        node: Any = KINDS["Node"](id=self.number, name=name, type=kind)
        node.data_deps.extend([*self.computed, *self.waited])
        node.attr.add(name="is_cpu_op", bool_val=False)
        for key, value in values.items():
            attribute = node.attr.add(name=key)
            if isinstance(value, list):
                attribute.uint64_list.values.extend(value)
            else:
                setattr(attribute, _FIELDS[key], value)
        serialize_length_prefixed(node, self.stream)
        self.number += 1
        return self.number - 1


_FIELDS = {
    **dict.fromkeys(("num_ops", "comm_type", "comm_size"), "int64_val"),
    **dict.fromkeys(("comm_src", "comm_dst", "comm_tag"), "int32_val"),
    "tensor_size": "uint64_val",
    "pg_name": "string_val",
}
"""The field in which Chakra's feeder expects each attribute."""


def group_name(workers: Sequence[int]) -> str:
    """Return the name of a group of ranks: its ranks joined by "-"."""
    return "-".join(map(str, workers))


def _group_of(together: Collective | None, worker: int) -> Group | None:
    groups = together.groups if together is not None else ()
    return next((group for group in groups if worker in group.workers), None)


CHAKRA = TraceFormat("Chakra", write_traces)
