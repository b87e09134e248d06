"""Names of many things at once, types, nodes, and routes against an enumeration of all paths."""

import random

import pytest

from tests.launcher import in_one_line
from tests.simulator.programs import device_type
from topologies import TopologyError, load_topology, parse_topology
from topologies.schema import TopologyWarning

HEAD = "format: topology/2\nname: small\ndescription: for tests\n"
LINK = "bandwidth_bytes_per_s: 1.0e9, direction: each, latency_s: 0"


def machine(text):
    return parse_topology(HEAD + text, "file.yaml")


def ends(machine):
    return [link.ends for link in machine.links]


def test_stars_are_matched_in_blocks():
    topology = machine(
        f"devices: [{{name: gpu*4, type: gk210}}]\nswitches: [{{name: s*2}}, {{name: top}}]\n"
        f"links: [{{ends: [gpu*4, s*2], {LINK}}}, {{ends: [s*2, top], {LINK}}}]"
    )
    assert [device.name for device in topology.devices] == ["gpu0", "gpu1", "gpu2", "gpu3"]
    assert ends(topology) == [
        *(("gpu0", "s0"), ("gpu1", "s0"), ("gpu2", "s1"), ("gpu3", "s1")),
        *(("s0", "top"), ("s1", "top")),
    ]


def test_stars_side_by_side_and_in_references():
    topology = machine(
        device_type("core") + "processors: [{name: cpu*2, cores: 2}]\n"
        "memories: [{name: dram*2, memory_bytes: 1.0e9, memory_bandwidth_bytes_per_s: 1.0e9}]\n"
        "devices: [{name: n*2/core*2, type: core, processor: cpu*2, memory: dram*2}]\nswitches: [{name: s}]\n"
        f"links: [{{ends: [n*2/core*2, s], {LINK}}}]"
    )
    assert [device.name for device in topology.devices] == ["n0/core0", "n0/core1", "n1/core0", "n1/core1"]
    assert [memory.devices for memory in topology.memories] == [(0, 1), (2, 3)]
    assert [topology.resources[device.processor].name for device in topology.devices] == [
        "cpu0",
        "cpu0",
        "cpu1",
        "cpu1",
    ]


def test_a_star_is_a_letter_in_the_first_format():
    text = HEAD.replace("topology/2", "topology/1") + "devices: [{name: gpu*4, type: gk210}]"
    assert [device.name for device in parse_topology(text).devices] == ["gpu*4"]


def test_types_of_links():
    topology = machine(
        "link_types: [{name: slow, bandwidth_bytes_per_s: 1.0e6, direction: shared, latency_s: 1.0e-6,"
        " half_bandwidth_bytes: 100},"
        " {name: nvlink1, bandwidth_bytes_per_s: 5.0e6, direction: each, latency_s: 1.0e-6,"
        " half_bandwidth_bytes: 50}]\n"
        "devices: [{name: a, type: gk210}, {name: b, type: gk210}]\nswitches: [{name: s}]\n"
        "links: [{ends: [a, s], type: slow, count: 3}, {ends: [s, b], type: nvlink1}]"
    )
    slow, own = topology.links
    assert (slow.type, slow.count, slow.bandwidth_bytes_per_s) == ("slow", 3, 3e6)
    assert slow.forward == slow.backward
    assert own.bandwidth_bytes_per_s == 5e6  # the file's, not the package's
    route = topology.route(0, 1)
    assert route.half_bandwidth_bytes == 100


def test_what_devices_reserve_and_drive():
    def machine_with(**figures):
        return machine(device_type(memory_bytes=1e9, **figures) + "devices: [{name: a, type: d}]")

    (plain,) = machine_with().devices
    assert (plain.spec.reserved_bytes, plain.copy_engines) == (0, None)
    topology = machine_with(reserved_bytes=3e8, copy_engines=2, streams_messages="true")
    (device,) = topology.devices
    assert (plain.spec.streams_messages, device.spec.streams_messages, device.spec.reserved_bytes) == (False, True, 3e8)
    engines = topology.resources[device.copy_engines]
    assert (engines.kind, engines.capacity) == ("engines", 2)
    with pytest.raises(TopologyError, match=r"device_types\[d\]\.reserved_bytes: expected less than memory_bytes"):
        machine_with(reserved_bytes=1e9)


def test_copy_engines_are_shared_by_what_a_device_sends():
    text = (
        device_type(memory_bandwidth_bytes_per_s=1e15, memory_bytes=1e9, copy_engines=2)
        + "devices: [{name: d*3, type: d}]\n"
        "links: [{ends: [d0, d1], bandwidth_bytes_per_s: 5.0e9, direction: each, latency_s: 0},"
        " {ends: [d0, d2], bandwidth_bytes_per_s: 2.0e9, direction: each, latency_s: 0},"
        " {ends: [d1, d2], bandwidth_bytes_per_s: 2.0e9, direction: each, latency_s: 0}]"
    )
    topology = machine(text)
    engines = topology.devices[0].copy_engines
    assert topology.resources[engines].capacity == 2
    assert dict(topology.route(0, 1).uses)[engines] == pytest.approx(1 / 5e9)
    assert dict(topology.route(0, 2).uses)[engines] == pytest.approx(1 / 2e9)
    assert engines not in dict(topology.route(1, 0).uses)
    assert topology.bandwidth_bytes_per_s(0, 2) == 2e9  # one message has its full speed


BOX = HEAD + f"devices: [{{name: gpu*2, type: gk210}}]\nswitches: [{{name: s}}]\nlinks: [{{ends: [gpu*2, s], {LINK}}}]"


def test_nodes_of_a_file_beside_this_one(tmp_path):
    (tmp_path / "box.yaml").write_text(BOX)
    (tmp_path / "pair.yaml").write_text(
        HEAD + f"nodes: [{{name: n*2, machine: box.yaml}}]\nlinks: [{{ends: [n0/s, n1/s], {LINK}}}]"
    )
    (tmp_path / "four.yaml").write_text(
        HEAD + f"nodes: [{{name: p*2, machine: pair.yaml}}]\nlinks: [{{ends: [p0/n1/s, p1/n0/s], {LINK}}}]"
    )
    topology = load_topology(tmp_path / "four.yaml")
    assert len(topology.devices) == 8
    assert topology.route(0, 7).nodes == ("p0/n0/gpu0", "p0/n0/s", "p0/n1/s", "p1/n0/s", "p1/n1/s", "p1/n1/gpu1")


def test_nodes_come_first_in_their_order(tmp_path):
    (tmp_path / "box.yaml").write_text(BOX)
    path = tmp_path / "all.yaml"
    path.write_text(
        HEAD + "nodes: [{name: x, machine: box.yaml}, {name: y*1, machine: box.yaml}]\n"
        "devices: [{name: own*1, type: gk210}]\nswitches: [{name: s}]\n"
        f"links: [{{ends: [x/s, s], {LINK}}}, {{ends: [y0/s, s], {LINK}}}, {{ends: [own0, s], {LINK}}}]"
    )
    assert [device.name for device in load_topology(path).devices] == ["x/gpu0", "x/gpu1", "y0/gpu0", "y0/gpu1", "own0"]


def test_doubts_about_a_node(tmp_path):
    (tmp_path / "box.yaml").write_text(BOX.replace("1.0e9", "1.0"))
    path = tmp_path / "pair.yaml"
    path.write_text(HEAD + f"nodes: [{{name: n*2, machine: box.yaml}}]\nlinks: [{{ends: [n0/s, n1/s], {LINK}}}]")
    with pytest.warns(TopologyWarning, match=r"box\.yaml: \$\.links\[0\]\.bandwidth_bytes_per_s: ") as warned:
        load_topology(path)
    assert len(warned) == 1


@pytest.mark.parametrize("name", ["own.yaml", "../{}/own.yaml"])
def test_nodes_within_themselves(tmp_path, name):
    path = tmp_path / "own.yaml"
    path.write_text(HEAD + f"nodes: [{{name: n, machine: '{name.format(tmp_path.name)}'}}]")
    with pytest.raises(TopologyError, match=r"expected a machine other than those that contain it, found '.*own"):
        load_topology(path)


def test_nodes_whose_types_mean_two_things(tmp_path):
    (tmp_path / "box.yaml").write_text(
        BOX + "\nlink_types: [{name: t, bandwidth_bytes_per_s: 2.0e9, direction: each, latency_s: 0}]"
    )
    path = tmp_path / "both.yaml"
    path.write_text(
        HEAD + "nodes: [{name: n, machine: box.yaml}]\n"
        "link_types: [{name: t, bandwidth_bytes_per_s: 1.0e9, direction: each, latency_s: 0}]"
    )
    with pytest.raises(TopologyError, match=r"\$\.nodes\[0\]: expected one meaning of 't' in .*link_types"):
        load_topology(path)


DEVICES = "devices: [{name: gpu*4, type: gk210}]\nswitches: [{name: s*3}]\n"
ERRORS = {
    "blocks": (DEVICES + f"links: [{{ends: [gpu*4, s*3], {LINK}}}]", r"\$\.links\[0\]\.ends: .*divides 4, found 3"),
    "none": ("devices: [{name: gpu*0, type: gk210}]", r"\$\.devices\[0\]\.name: expected 1 to .*'gpu\*0'"),
    "too many": ("devices: [{name: gpu*9999999, type: gk210}]", r"\$\.devices\[0\]\.name: expected 1 to "),
    "far too many": ("devices: [{name: a*1000*1000*1000, type: gk210}]", r"\.name: expected at most \d+ entries"),
    "a letter": ("devices: [{name: gpu*K, type: gk210}]", r"\$\.devices\[0\]\.name: expected a number after the \*"),
    "no devices": ("", r"\$\.devices: expected at least one device"),
    "type and figures": (
        DEVICES + "links: [{ends: [gpu0, gpu1], type: nvlink1, latency_s: 0}]",
        r"\$\.links\[gpu0-gpu1\]: expected a type or figures of its own, found type and latency_s",
    ),
    "unknown type": (
        DEVICES + "links: [{ends: [gpu0, gpu1], type: wet-string}]",
        r"\$\.links\[gpu0-gpu1\]\.type: expected a type of link .*, found 'wet-string'",
    ),
    "neither": (DEVICES + "links: [{ends: [gpu0, gpu1]}]", r"expected the key 'bandwidth_bytes_per_s', or a type"),
    "count": (DEVICES + "links: [{ends: [gpu0, gpu1], type: nvlink1, count: 0}]", r"count: expected .* >= 1, found 0"),
    "unknown node": ("nodes: [{name: n, machine: nowhere}]", "nowhere: expected a topology file, a name that"),
    "too slow": (
        DEVICES + f"links: [{{ends: [gpu0, gpu1], {LINK.replace('1.0e9', '1.0e-320')}}}]",
        r"bandwidth_bytes_per_s: expected a number of bytes a second >= 1e-06, found 1e-320",
    ),
}


@pytest.mark.parametrize(("text", "message"), ERRORS.values(), ids=ERRORS)
def test_mistakes_are_one_line(text, message):
    with in_one_line(TopologyError, rf"^file\.yaml: .*{message}"):
        machine(text)


def simple_paths(links, start, end, forwarding):
    """Every path as (bandwidths, link numbers, nodes), by walking all of them."""
    waiting = [((), (), (start,))]
    while waiting:
        widths, numbers, nodes = waiting.pop()
        if nodes[-1] == end:
            yield widths, numbers, nodes
        elif nodes[-1] in forwarding or len(nodes) == 1:
            for number, ((a, b), width) in enumerate(links):
                for x, y in ((a, b), (b, a)):
                    if x == nodes[-1] and y not in nodes:
                        waiting.append(((*widths, width), (*numbers, number), (*nodes, y)))


@pytest.mark.parametrize("seed", range(30))
def test_routes_are_the_best_of_all_paths(seed):
    chance = random.Random(seed)
    nodes, forwarding = ["a", "b", "c", "s", "t", "u"], {"s", "t", "u"}
    pairs = [(x, y) for i, x in enumerate(nodes) for y in nodes[i + 1 :]]
    links = [(pair, chance.choice((1e9, 2e9, 3e9))) for pair in chance.sample(pairs, chance.randint(5, 12))]
    text = (
        HEAD
        + "devices: [{name: a, type: gk210}, {name: b, type: gk210}, {name: c, type: gk210}]\n"
        + "switches: [{name: s}, {name: t}, {name: u}]\nlinks:\n"
        + "".join(f"  - {{ends: [{a}, {b}], {LINK.replace('1.0e9', str(width))}}}\n" for (a, b), width in links)
    )
    expected = {
        (u, w): best_paths(simple_paths(links, nodes[u], nodes[w], forwarding))
        for u in range(3)
        for w in range(3)
        if u != w
    }
    if not all(expected.values()):
        with pytest.raises(TopologyError, match="expected a path from"):
            parse_topology(text)
    else:
        topology = parse_topology(text)
        assert all(topology.route(*pair).nodes in best.values() for pair, best in expected.items())
        widths = {pair: topology.bandwidth_bytes_per_s(*pair) for pair in expected}
        assert widths == {pair: next(iter(best))[0] for pair, best in expected.items()}


def best_paths(paths):
    """Return those of fewest links and among them the widest: nodes by width and links."""
    ranked = sorted(((len(n), -min(wide)), n, path) for wide, n, path in paths)
    return {(-best[1], n): path for best, n, path in ranked if best == ranked[0][0]}


def test_devices_beside_each_other_take_adapters_beside_each_other_in_turn():
    node = load_topology("dgx-a100-pod-2")
    for device in range(8):
        adapters = [name for name in node.route(device, device + 8).nodes if "/nic" in name]
        assert adapters == [f"node0/nic{device}", f"node1/nic{device}"]
