"""Exchanges on clusters of which a few nodes are built, against all nodes built."""

from dataclasses import replace
from functools import cache

import pytest

from simulator.projection.network import NODES_BUILT, Grid, Network, cluster, cluster_of
from simulator.projection.replica import Transfer
from topologies import load_topology
from topologies.schema import CollectiveEntry

PER_NODE = 8
FAMILIES = ("hgx-h100-nodes", "dgx-a100-pod", "p4d-nodes", "p6-b200-nodes")


@cache
def whole(name):
    return cluster_of(load_topology(name))


def grids(workers):
    """Stages, replicas and inner workers: groups within a node, one of each node, several of each."""
    for inner in (1, 2, 8):
        yield Grid(1, workers // inner, inner)
        yield Grid(4, workers // inner // 4, inner)


@pytest.mark.parametrize(
    ("family", "nodes"), [*((family, NODES_BUILT + 4) for family in FAMILIES), ("hgx-h100-nodes", 64)]
)
def test_of_many_nodes_a_few_tell_what_all_do(family, nodes):
    name = f"{family}-{nodes}"
    few, many = cluster(name), whole(name)
    assert len(few.built.devices) < len(many.built.devices) == few.devices == nodes * PER_NODE
    for grid in grids(few.devices):
        first, second = Network(few, grid), Network(many, grid)
        for kind in ("all-reduce", "all-gather", "reduce-scatter"):
            for nbytes in (1e3, 1e6, 1e10):
                assert first.replicas_s(kind, nbytes) == pytest.approx(second.replicas_s(kind, nbytes), rel=1e-9)
                assert first.ends_s(kind, nbytes) == pytest.approx(second.ends_s(kind, nbytes), rel=1e-9)
        assert first.stages_s(1e7) == pytest.approx(second.stages_s(1e7), rel=1e-9)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_exchange_of_all_workers_is_the_same_by_few_nodes(family):
    name = f"{family}-{NODES_BUILT + 4}"
    few, many = cluster(name), whole(name)
    grid = Grid(1, 1, few.devices)
    for kind in ("all-reduce", "all-to-all"):
        transfer = Transfer(kind, tuple(range(few.devices)), 10**9)
        seconds = [Network(of, grid).transfer_s(transfer) for of in (few, many)]
        assert seconds[0] == pytest.approx(seconds[1], rel=1e-9)


@pytest.mark.parametrize("hop_s", [0.0, 1e-3])
@pytest.mark.parametrize("algorithm", ["ring", "tree", "hierarchical"])
def test_messages_in_a_row_grow_with_the_nodes(algorithm, hop_s):
    """By few nodes as by all, where a machine says what each message takes: its links' latencies are then no part."""
    name = f"hgx-h100-nodes-{NODES_BUILT + 4}"
    entry = CollectiveEntry(
        algorithm=algorithm, operations=("all-reduce",), nodes="several", latency_s=1e-5, hop_s=hop_s
    )
    first, second = (
        Network(replace(of, built=replace(of.built, collectives=(entry,))), Grid(1, of.devices, 1))
        for of in (cluster(name), whole(name))
    )
    devices = first.grid.workers
    messages = {"ring": 2 * (devices - 1), "tree": 2 * (devices.bit_length() - 1), "hierarchical": 2 * (7 + 19)}
    assert first.replicas_s("all-reduce", 1.0) == pytest.approx(1e-5 + messages[algorithm] * hop_s, rel=1e-4)
    for nbytes in (1.0, 1e13):
        assert first.replicas_s("all-reduce", nbytes) == pytest.approx(
            second.replicas_s("all-reduce", nbytes), rel=1e-9
        )


def test_groups_that_share_adapters_share_their_bandwidth():
    """Eight groups of one worker a node share its eight adapters, or its four: ring over the links' bandwidth."""
    nbytes, nodes = 1e12, NODES_BUILT + 4
    part = (nodes - 1) / nodes
    for name, bandwidth in (("hgx-h100-nodes", 48e9), ("p4d-nodes", 4 / 8 * 12e9)):
        network = Network(whole(f"{name}-{nodes}"), Grid(1, nodes, PER_NODE))
        assert network.replicas_s("all-gather", nbytes) == pytest.approx(nbytes * part / bandwidth, rel=1e-3)
        assert network.replicas_s("all-reduce", nbytes) == pytest.approx(2 * nbytes * part / bandwidth, rel=0.1)
