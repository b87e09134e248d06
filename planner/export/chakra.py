"""Programs as MLCommons' Chakra execution traces, schema 1.0, a file for each worker; and what such files move.

Computing is a COMP_NODE with its operations and bytes; a message a COMM_SEND_NODE and its peer's COMM_RECV_NODE; what
all workers of a group do together a COMM_COLL_NODE, whose `pair_bytes` say, as an attribute of ours, what it sends
every member. A node depends on what its worker computed last, and on what it waited for since.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.proto import serialize_length_prefixed
from numpy.typing import NDArray

from planner.errors import InputError
from planner.export.protobuf import messages, read_delimited
from planner.files import read_input, write_file
from planner.graph.ir import ITEM_BYTES
from planner.layout.communication import Collective, Group
from planner.program.in_order import program_in_order
from planner.program.tasks import Compute, Program, Receive, Send, Task, WorkerProgram

KINDS = messages(Path(__file__).parent / "chakra.proto")
VERSION = "1.0"
COMPUTE, SEND, RECEIVE, COLLECTIVE = 4, 5, 6, 7
NAMES = {COMPUTE: "computing", SEND: "sending", RECEIVE: "receiving", COLLECTIVE: "collectives"}
OPERATIONS = {
    "all-reduce": 0,
    "reduce": 1,
    "all-gather": 2,
    "broadcast": 5,
    "all-to-all": 6,
    "reduce-scatter": 7,
}
"""What Chakra numbers the operations of a library."""

GROUP = "process_group:"
"""What an attribute of a file's metadata is called that lists the ranks of a group, before the group's name."""


RANK = "rank"
"""The attribute of a file's metadata that says whose it is."""


@dataclass(frozen=True, slots=True)
class Traces:
    """What the traces of all ranks say: how many nodes of each type, and bytes from rank (row) to rank (column)."""

    nodes: Mapping[str, int]
    bytes: NDArray[np.int64]


def trace_path(path: Path, worker: int) -> Path:
    """Return a worker's file: `trace.3.et` of `trace.et`."""
    return path.with_name(f"{path.stem}.{worker}.et")


def write_traces(program: Program, path: Path) -> list[Path]:
    """Write every worker's file beside a path, and return them; every micro-batch has nodes of its own."""
    written = []
    for worker in program_in_order(program).workers:
        file, stream = trace_path(path, worker.worker), BytesIO()
        _Writer(worker, stream).write()
        write_file(file, stream.getvalue())
        written.append(file)
    return written


@dataclass(slots=True)
class _Writer:
    """Writes one worker's nodes: what it computed last, and waited for since, is what the next node depends on."""

    worker: WorkerProgram
    stream: BytesIO
    number: int = 0
    computed: list[int] = field(default_factory=list)
    waited: list[int] = field(default_factory=list)
    under_way: dict[int, list[int]] = field(default_factory=dict)

    def write(self) -> None:
        """Write the whole file."""
        metadata: Any = KINDS["GlobalMetadata"](version=VERSION)
        metadata.attr.add(name=RANK, int32_val=self.worker.worker)
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
        """Return the bytes that an operation is about: of a gathered whole, the worker's own part."""
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
"""How Chakra's feeder reads each attribute."""


def group_name(workers: Sequence[int]) -> str:
    """Return what a group of ranks is called: by its ranks."""
    return "-".join(map(str, workers))


def _group_of(together: Collective | None, worker: int) -> Group | None:
    groups = together.groups if together is not None else ()
    return next((group for group in groups if worker in group.workers), None)


def read_traces(paths: Sequence[Path]) -> Traces:
    """Read all ranks' files; InputError where one is none, or where what is sent is not what is received.

    The ranks of a collective must all take part in it, in the same way.
    """
    readers = [_Reader(path, len(paths)) for path in paths]
    nodes = sum((reader.nodes for reader in readers), Counter[str]())
    shared = sum((reader.shared for reader in readers), Counter[tuple[str, int, int]]())
    for (name, tag, _), count in shared.items():
        if count != len(expected := name.split("-")):
            raise InputError(f"collective {tag}: expected ranks {', '.join(expected)}, found {count} of them")
    sent, received = (sum(getattr(reader, way) for reader in readers) for way in ("sent", "received"))
    if (sent != received).any():
        source, target = (int(ends[0]) for ends in np.nonzero(sent != received))
        raise InputError(
            f"rank {source} to {target}: expected as many bytes received as sent, found {received[source, target]:,} "
            f"and {sent[source, target]:,}"
        )
    return Traces(dict(nodes), sent + sum(reader.together for reader in readers))


class _Reader:
    """Reads one rank's file, and counts its nodes and bytes, [ranks, ranks]; `together` are those of collectives."""

    def __init__(self, path: Path, ranks: int) -> None:
        self.nodes: Counter[str] = Counter()
        self.shared: Counter[tuple[str, int, int]] = Counter()
        self.sent, self.received, self.together = (np.zeros((ranks, ranks), dtype=np.int64) for _ in range(3))
        kinds = chain([KINDS["GlobalMetadata"]], repeat(KINDS["Node"]))
        metadata, *nodes = read_delimited(read_input(path), kinds, path)
        if metadata.version != VERSION:
            raise InputError(f"{path}: expected schema {VERSION}, found {metadata.version!r}")
        named = {attribute.name: attribute for attribute in metadata.attr}
        self.rank = named[RANK].int32_val if RANK in named else -1
        if not 0 <= self.rank < ranks:
            raise InputError(f"{path}: expected a rank of {ranks}, found {self.rank}")
        self.groups = {
            name.removeprefix(GROUP): tuple(attribute.int32_list.values)
            for name, attribute in named.items()
            if GROUP in name
        }
        for node in nodes:
            self._count(node)

    def _count(self, node: Any) -> None:
        values = {attribute.name: getattr(attribute, attribute.WhichOneof("value")) for attribute in node.attr}
        self.nodes[NAMES[node.type]] += 1
        if node.type in (SEND, RECEIVE):
            counted = self.sent if node.type == SEND else self.received
            counted[values["comm_src"], values["comm_dst"]] += values["comm_size"]
        elif node.type == COLLECTIVE:
            name = values["pg_name"]
            self.shared[name, values["comm_tag"], values["comm_type"]] += 1
            for rank, nbytes in zip(self.groups[name], values["pair_bytes"].values, strict=True):
                self.together[self.rank, rank] += nbytes
