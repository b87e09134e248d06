"""Chakra's traces: read back they move the plan's bytes; and they say of collectives what these are."""

import sys
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from tests.launcher import exit_status

pytest.importorskip("google.protobuf")

import planner
from planner.program.in_order import program_in_order
from planner.program.tasks import Compute, Send
from tensor_partitioner.commands.export import main
from tests.extras import EXTRAS, add_extra

sys.path.insert(0, str(EXTRAS / "chakra"))

from chakra_traces import KINDS, OPERATIONS, VERSION, trace_path, write_traces

SMALL = {"batch": 8, "sequence": 16, "vocabulary": 48, "heads": 4}
CASES = [
    ("mlp-2-16", {"batch": 8}, {"workers": 4}),
    ("transformer-1-64", SMALL, {"parallel": "dp=2,tp=2,zero=1"}),
    ("transformer-2-64", {**SMALL, "micro_batches": 4}, {"parallel": "pp=2,dp=2,micro-batch=1"}),
    ("wresnet-14-1", {"batch": 8, "image": 8}, {"workers": 4}),
    ("mlp-2-16", {"batch": 8}, {"workers": 3, "shares": (2, 1, 1), "ways": (3,)}),
]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]}-{'-'.join(map(str, case[2].values()))}")
def traced(request, tmp_path_factory):
    name, options, search = request.param
    plan = planner.plan(planner.model(name, **options), **search)
    program = planner.lower(plan)
    return plan, program, write_traces(program, tmp_path_factory.mktemp("traces") / "trace.et")


def messages(path):
    """The messages of a file, by protobuf's wire format as it is published: a varint of the length, then the bytes."""
    content, at = path.read_bytes(), 0
    while at < len(content):
        length = shift = 0
        while True:
            byte = content[at]
            at += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        yield content[at : at + length]
        at += length


def nodes(path):
    first, *rest = messages(path)
    assert KINDS["GlobalMetadata"].FromString(first).version == VERSION
    return [KINDS["Node"].FromString(message) for message in rest]


def values(node):
    return {attribute.name: getattr(attribute, attribute.WhichOneof("value")) for attribute in node.attr}


def moved(files):
    """Bytes from rank to rank: what is sent, what is received, and what collectives send, [ranks, ranks] each."""
    sent, received, together = (np.zeros((len(files), len(files)), dtype=np.int64) for _ in range(3))
    for rank, path in enumerate(files):
        for node in nodes(path):
            told = values(node)
            if node.type in (5, 6):
                (sent if node.type == 5 else received)[told["comm_src"], told["comm_dst"]] += told["comm_size"]
            elif node.type == 7:
                for peer, nbytes in zip(map(int, told["pg_name"].split("-")), told["pair_bytes"].values, strict=True):
                    together[rank, peer] += nbytes
    return sent, received, together


def test_bytes_are_the_plans_for_every_pair(traced):
    plan, _, files = traced
    sent, received, together = moved(files)
    np.testing.assert_array_equal(sent, received)
    np.testing.assert_array_equal(sent + together, plan.bytes)


def test_computing_is_the_programs(traced):
    _, program, files = traced
    for worker, path in zip(program_in_order(program).workers, files, strict=True):
        computing = [values(node) | {"name": node.name} for node in nodes(path) if node.type == 4]
        tasks = [task for task in worker.tasks if isinstance(task, Compute)]
        assert [node["num_ops"] for node in computing] == [int(task.operations) for task in tasks]
        assert [node["tensor_size"] for node in computing] == [task.touched_bytes for task in tasks]
        assert [node["name"] for node in computing] == [task.title for task in tasks]


def test_nodes_depend_on_what_stands_before_them(traced):
    for path in traced[2]:
        trace = nodes(path)
        assert [node.id for node in trace] == list(range(len(trace)))
        assert all(dependency < node.id for node in trace for dependency in node.data_deps)
        computing = [node for node in trace if node.type == 4]
        for before, node in pairwise(computing):
            assert before.id in node.data_deps


def test_every_message_has_two_ends(traced):
    ends = {5: [], 6: []}
    for path in traced[2]:
        for node in nodes(path):
            if node.type in ends:
                said = values(node)
                ends[node.type].append(tuple(said[key] for key in ("comm_src", "comm_dst", "comm_tag", "comm_size")))
    assert sorted(ends[5]) == sorted(ends[6])


def test_collectives_move_what_their_sizes_say(traced):
    """Over a group of k ranks, k - 1 times what is gathered, broadcast, or reduced to parts or to one."""
    kinds = {number: kind for kind, number in OPERATIONS.items()}
    sizes, sent = {}, Counter()
    for path in traced[2]:
        for node in nodes(path):
            if node.type == 7:
                said = values(node)
                key = kinds[said["comm_type"]], said["pg_name"], said["comm_tag"]
                sizes.setdefault(key, []).append(said["comm_size"])
                sent[key] += sum(said["pair_bytes"].values)
    assert sizes
    for (kind, name, _), shares in sizes.items():
        assert len(shares) == len(name.split("-"))
        assert kind == "all-gather" or len(set(shares)) == 1
    once = {key: sum(shares) if key[0] == "all-gather" else shares[0] for key, shares in sizes.items()}
    for key, shares in sizes.items():
        if key[0] in ("all-gather", "reduce-scatter", "broadcast", "reduce"):
            assert sent[key] == (len(shares) - 1) * once[key]


def test_transfers_that_are_collectives_are_nothing_else(traced):
    _, program, files = traced
    for worker, path in zip(program_in_order(program).workers, files, strict=True):
        tasks = [task for task in worker.tasks if isinstance(task, Send) and task.collective is not None]
        mine = [task for task in tasks if any(worker.worker in group.workers for group in task.collective.groups)]
        assert sum(node.type == 7 for node in nodes(path)) == len(mine)


@pytest.fixture
def files(tmp_path):
    plan = planner.plan(planner.model("transformer-1-64", **SMALL), parallel="pp=2")
    return write_traces(planner.lower(plan), tmp_path / "trace.et")


def test_files_are_named_after_their_worker(files, tmp_path):
    assert files == [tmp_path / "trace.0.et", tmp_path / "trace.1.et"]
    assert trace_path(tmp_path / "a.b.et", 3).name == "a.b.3.et"


def test_the_command_writes_what_a_package_adds(tmp_path, monkeypatch, capsys):
    add_extra("chakra", tmp_path, monkeypatch)
    saved = tmp_path / "plan.json"
    planner.plan(planner.model("mlp-2-16", batch=8), parallel="dp=2,tp=2").save(saved)
    for arguments, status in (((), 2), (("-o", str(tmp_path / "trace.et")), 0)):
        assert exit_status(main, [str(saved), "--to", "chakra", *arguments]) == status
    told = capsys.readouterr()
    assert "Chakra: expected -o FILE" in told.err
    assert "trace.0.et to trace.3.et" in told.out
    assert (tmp_path / "trace.3.et").exists()
