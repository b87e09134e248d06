"""Algorithms against themselves: run step by step on arrays, with every element counted that goes anywhere."""

from collections import Counter
from itertools import chain

import numpy as np
import pytest

from topologies import TopologyError, load_topology, parse_topology
from topologies.traffic import choices, fastest

DEVICE = """
device_types:
  - name: d
    peak_flop_per_s: {float32: 1.0e12}
    memory_bytes: 16.0e9
    memory_bandwidth_bytes_per_s: 1.0e15
    efficiency: {matmul: 1, convolution: 1, reduction: 1, elementwise: 1, other: 1}
    launch_latency_s: 0
"""
INSIDE, BETWEEN = 100.0e9, 10.0e9
INSIDE_S, BETWEEN_S = 2.0e-6, 7.0e-6


def machine(nodes=2, devices=4, extra="", reduces="false"):
    """Nodes of devices on a switch; the switches hang on another by a link each. Latencies are of whole routes."""
    return parse_topology(f"""
format: topology/2
name: nodes
description: nodes of devices, each on a switch
{DEVICE}
devices: [{{name: node*{nodes}/gpu*{devices}, type: d}}]
switches: [{{name: node*{nodes}/switch, reduces: {reduces}}}, {{name: network}}]
links:
  - {{ends: [node*{nodes}/gpu*{devices}, node*{nodes}/switch], type: inside}}
  - {{ends: [node*{nodes}/switch, network], type: between}}
link_types:
  - {{name: inside, bandwidth_bytes_per_s: {INSIDE}, direction: each, latency_s: {INSIDE_S / 2}}}
  - {{name: between, bandwidth_bytes_per_s: {BETWEEN}, direction: each, latency_s: {(BETWEEN_S - INSIDE_S) / 2}}}
{extra}""")


def chosen(on, operation, algorithm, devices=None):
    devices = tuple(range(len(on.devices))) if devices is None else devices
    (choice,) = (choice for choice in choices(on, operation, devices) if choice.algorithm == algorithm)
    return choice


class Ranks:
    """Devices with an array each, cut into shares, and a count of what went from whom to whom."""

    def __init__(self, devices, shares):
        self.held = {device: np.random.default_rng(device).integers(0, 99, shares) for device in devices}
        self.total = sum(self.held.values())
        self.sent, self.rounds = Counter(), 0

    def send(self, source, target, shares, *, add):
        """Send some shares, which are added up or copied where they arrive."""
        value = self.held[source][shares]
        self.held[target][shares] = self.held[target][shares] + value if add else value
        self.sent[source, target] += value.size

    def ring(self, devices, blocks, *, add):
        """All but one of the blocks of shares go around a ring, one step at a time: reduce-scatter, or all-gather."""
        n = len(devices)
        for step in range(n - 1):
            for place in range(n):
                block = blocks[(place - step + (not add)) % n]
                self.send(devices[place], devices[(place + 1) % n], block, add=add)
        self.rounds += n - 1

    def has(self, device, shares):
        return (self.held[device][shares] == self.total[shares]).all()


def flows(pattern, payload):
    return {pair: pytest.approx(share * payload) for pair, share in pattern.flows.items()}


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_ring(n):
    ranks, devices, blocks = Ranks(range(n), n), list(range(n)), [[share] for share in range(n)]
    ranks.ring(devices, blocks, add=True)
    assert all(ranks.has(device, [(device + 1) % n]) for device in devices)
    on = machine(1, n)
    for operation in ("reduce-scatter", "all-gather"):
        assert ranks.sent == flows(chosen(on, operation, "ring").pattern, n)
    ranks.ring(devices, blocks, add=False)
    assert all(ranks.has(device, slice(None)) for device in devices)
    choice = chosen(on, "all-reduce", "ring")
    assert ranks.sent == flows(choice.pattern, n)
    assert sum(choice.pattern.chain.values()) == pytest.approx(ranks.rounds)
    assert choice.alone.delay_s == pytest.approx(ranks.rounds * INSIDE_S)
    assert choice.alone.s_per_byte == pytest.approx(2 * (n - 1) / n / INSIDE)


@pytest.mark.parametrize("n", [2, 3, 4, 6, 8])
def test_double_tree(n):
    """Half of the payload goes up and down one tree, the other half another: nobody sends it more than twice."""
    ranks, depth = Ranks(range(n), 2), 0
    for half, order in enumerate([list(range(n)), list(range(n))[::-1]]):
        for place in range(n - 1, 0, -1):
            ranks.send(order[place], order[(place - 1) // 2], [half], add=True)
        for place in range(1, n):
            ranks.send(order[(place - 1) // 2], order[place], [half], add=False)
        depth = (n).bit_length() - 1
    assert all(ranks.has(device, slice(None)) for device in range(n))
    choice = chosen(machine(1, n), "all-reduce", "tree")
    assert ranks.sent == flows(choice.pattern, 2)
    assert choice.alone.delay_s == pytest.approx(2 * depth * INSIDE_S)
    assert (
        max(sum(count for (source, _), count in ranks.sent.items() if source == device) for device in range(n)) <= 2 * 2
    )


@pytest.mark.parametrize(("nodes", "devices"), [(2, 4), (3, 2), (4, 8)])
def test_hierarchical(nodes, devices):
    """Shares are summed up within each node, then along each rail, and gathered again."""
    inside = [list(range(node * devices, (node + 1) * devices)) for node in range(nodes)]
    rails = [list(rail) for rail in zip(*inside, strict=True)]
    ranks = Ranks(range(nodes * devices), nodes * devices)
    blocks = [list(range(part * nodes, (part + 1) * nodes)) for part in range(devices)]
    for node in inside:
        ranks.ring(node, blocks, add=True)
    for place, rail in enumerate(rails):
        own = [[share] for share in blocks[(place + 1) % devices]]
        ranks.ring(rail, own, add=True)
        ranks.ring(rail, own, add=False)
    for node in inside:
        ranks.ring(node, blocks, add=False)
    assert all(ranks.has(device, slice(None)) for device in range(nodes * devices))
    on = machine(nodes, devices)
    choice = chosen(on, "all-reduce", "hierarchical")
    assert ranks.sent == flows(choice.pattern, nodes * devices)
    assert choice.alone.delay_s == pytest.approx(2 * (devices - 1) * INSIDE_S + 2 * (nodes - 1) * BETWEEN_S)
    for operation in ("reduce-scatter", "all-gather"):
        half = chosen(on, operation, "hierarchical").pattern
        assert {pair: 2 * share for pair, share in half.flows.items()} == pytest.approx(choice.pattern.flows)


def crossing(pattern, devices=4):
    """What goes from the first node to the second, in payloads."""
    return sum(share for (source, target), share in pattern.flows.items() if source < devices <= target)


def test_two_nodes_of_four():
    """On the link between them a hierarchy puts the payload, a ring 1.75 times as much, pairs four times."""
    on = machine()
    assert crossing(chosen(on, "all-reduce", "hierarchical").pattern) == pytest.approx(1)
    assert crossing(chosen(on, "all-reduce", "ring").pattern) == pytest.approx(1.75)
    in_pairs = 2 * 4 * 4 / 8  # an eighth of the sums, and of the payload, from each of four to each of four
    assert in_pairs == 4
    assert fastest(choices(on, "all-reduce", tuple(range(8))), 1e9).algorithm == "hierarchical"
    assert chosen(on, "all-reduce", "hierarchical").alone.s_per_byte == pytest.approx(1 / BETWEEN)


def test_a_switch_that_reduces():
    """It reads all payloads, hands out the sums' shares and spreads them: 1 + 1/n up and down every link."""
    entry = "{algorithm: in-switch, operations: [all-reduce], latency_s: 3.0e-6, hop_s: 0, bandwidth_share: 0.5}"
    table = f"collectives: [{entry}]"
    devices = (0, 1, 2, 3)
    offered = choices(machine(2, 4, table, "true"), "all-reduce", devices)
    assert [choice.algorithm for choice in offered] == ["in-switch"]
    assert offered[0].alone.delay_s == 3.0e-6
    assert offered[0].alone.s_per_byte == pytest.approx((1 + 1 / 4) / INSIDE / 0.5)
    plain = ["ring", "tree"]
    assert [choice.algorithm for choice in choices(machine(2, 4, table), "all-reduce", devices)] == plain
    across = [choice.algorithm for choice in choices(machine(2, 4, table, "true"), "all-reduce", tuple(range(8)))]
    assert across == [*plain, "hierarchical"]
    assert [choice.algorithm for choice in choices(machine(1, 4, reduces="true"), "all-reduce", devices)] == plain


def test_a_library_takes_what_is_fastest_for_a_size():
    """Of two entries the one with less latency is for little, the other for much; where they meet takes as long."""
    table = """collectives:
  - {algorithm: ring, operations: [all-gather], latency_s: 1.0e-5, hop_s: 0, bandwidth_share: 0.5}
  - {algorithm: ring, operations: [all-gather], latency_s: 3.0e-5, hop_s: 0}
"""
    offered = choices(machine(1, 4, table), "all-gather", (0, 1, 2, 3))
    least = 0.75 / INSIDE
    meet = 2.0e-5 / least
    little, much = (fastest(offered, meet * part).alone for part in (0.9, 1.1))
    assert (little.delay_s, much.delay_s) == (1.0e-5, 3.0e-5)
    assert much.seconds(meet) == pytest.approx(little.seconds(meet))


def test_messages_in_a_row_hide_behind_what_is_large():
    """Three messages of 1e-5 s: little waits for them, much is sent meanwhile."""
    table = "collectives: [{algorithm: ring, operations: [all-gather], latency_s: 2.0e-5, hop_s: 1.0e-5}]"
    (ring,) = choices(machine(1, 4, table), "all-gather", (0, 1, 2, 3))
    meet = 3.0e-5 * INSIDE / 0.75
    for part, seconds, idle_s in ((0, 5e-5, 5e-5), (1 / 3, 5e-5, 4e-5), (1, 5e-5, 2e-5), (2, 8e-5, 2e-5)):
        assert ring.alone.seconds(part * meet) == pytest.approx(seconds)
        assert ring.alone.idle_s(part * meet) == pytest.approx(idle_s)


def test_every_pair_of_an_all_to_all():
    choice = chosen(machine(1, 4), "all-to-all", "pairwise")
    assert set(choice.pattern.flows.values()) == {1 / 4}
    assert len(choice.pattern.flows) == 12
    assert choice.alone.s_per_byte == pytest.approx(3 / 4 / INSIDE)


@pytest.mark.parametrize("part", [1, 2])
def test_a_device_of_a_partly_used_node_is_part_of_several_rails(part):
    """As many rings go between the nodes as the fullest has devices; where there are fewer, one carries several."""
    inside, shares = [[0, 1, 2, 3], [4, 5][:part]], 8
    blocks = [[2 * place, 2 * place + 1] for place in range(4)]
    of_node = [blocks, [[*chain.from_iterable(blocks[place::part])] for place in range(part)]]
    ranks = Ranks([0, 1, 2, 3, *inside[1]], shares)
    for add in (True, False):
        if not add:
            for place in range(4):
                rail = [node[place % len(node)] for node in inside]
                own = [[share] for share in blocks[(place + 1) % 4]]
                ranks.ring(rail, own, add=True)
                ranks.ring(rail, own, add=False)
        for node, held in zip(inside, of_node, strict=True):
            ranks.ring(node, held, add=add)
    devices = (0, 1, 2, 3, *inside[1])
    assert all(ranks.has(device, slice(None)) for device in devices)
    assert ranks.sent == flows(chosen(machine(2, 4), "all-reduce", "hierarchical", devices).pattern, shares)


def test_nodes_with_one_device_each_have_no_hierarchy():
    assert [choice.algorithm for choice in choices(machine(2, 4), "all-reduce", (0, 4))] == ["ring", "tree"]


def test_a_partly_used_node_loses_no_more_than_its_rails():
    """Of 68 GPUs the last four have half of a node's adapters, so that an all-reduce takes up to twice as long."""
    on = load_topology("hgx-h100-nodes-9")
    full, part = (fastest(choices(on, "all-reduce", tuple(range(n))), 1e9).alone.seconds(1e9) for n in (64, 68))
    assert full < part < 2.1 * full


def test_tables_of_nodes_are_their_clusters():
    for cluster, node in (("hgx-h100-nodes-2", "hgx-h100"), ("p4d-nodes-2", "p4d.24xlarge")):
        assert set(load_topology(node).collectives) <= set(load_topology(cluster).collectives)


@pytest.mark.parametrize(
    ("entry", "match"),
    [
        ("{algorithm: spiral, operations: [all-reduce]}", r"algorithm: expected 'ring' or 'tree' or .*found 'spiral'"),
        ("{algorithm: ring, operations: [gather]}", r"operations\[0\]: expected 'all-gather' or .*, found"),
        ("{algorithm: ring, operations: []}", r"operations: expected a list of length >= 1, found \[\]"),
        ("{algorithm: ring, operations: [all-reduce], bandwidth_share: 2}", "bandwidth_share: expected .*, found 2"),
    ],
)
def test_what_makes_no_sense(entry, match):
    with pytest.raises(TopologyError, match=match):
        machine(extra=f"collectives: [{entry}]")


def test_rings_of_a_mesh_are_as_many_as_share_no_link():
    """AMD's MI300X: 7 links of 48e9 bytes/s of each, of which 3 lead to a group's others (rocm.blogs.amd.com)."""
    mesh = load_topology("mi300x-platform")
    for count in (2, 4, 8):
        (ring,) = choices(mesh, "all-gather", tuple(range(count)))
        assert ring.alone.s_per_byte == pytest.approx((count - 1) / count / ((count - 1) * 48e9))
