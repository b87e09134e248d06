"""What a topology file may say: routes, sharing and staging on small machines, and one line for every mistake."""

import pytest

from tests.launcher import in_one_line
from topologies import TopologyError, parse_topology

TYPE = """
format: topology/1
name: small
description: for tests
device_types:
  - name: d
    peak_flop_per_s: {float32: 100}
    memory_bytes: 1000
    memory_bandwidth_bytes_per_s: 1000
    efficiency: {matmul: 1, convolution: 1, reduction: 1, elementwise: 1, other: 1}
    launch_latency_s: 0
"""
PAIR = (
    TYPE
    + """
devices: [{name: a, type: d}, {name: b, type: d}]
switches: [{name: s}]
links:
  - {ends: [a, s], bandwidth_bytes_per_s: 10, direction: each, latency_s: 1}
  - {ends: [s, b], bandwidth_bytes_per_s: 20, direction: shared, latency_s: 2}
"""
)


def test_directions_each_or_shared():
    machine = parse_topology(PAIR)
    there = {machine.resources[r].name: amount for r, amount in machine.route(0, 1).uses}
    back = {machine.resources[r].name: amount for r, amount in machine.route(1, 0).uses}
    assert there == {"a->s": 1, "s<->b": 1, "a.memory": 1, "b.memory": 1}
    assert back == {"s->a": 1, "s<->b": 1, "a.memory": 1, "b.memory": 1}
    assert machine.route(0, 1).latency_s == 3


def test_fewest_links_then_widest_then_first_in_the_file():
    links = """
links:
  - {ends: [a, s], bandwidth_bytes_per_s: 10, direction: each, latency_s: 0}
  - {ends: [s, b], bandwidth_bytes_per_s: 10, direction: each, latency_s: 0}
  - {ends: [a, t], bandwidth_bytes_per_s: 20, direction: each, latency_s: 0}
  - {ends: [t, b], bandwidth_bytes_per_s: 15, direction: each, latency_s: 0}
  - {ends: [a, c], bandwidth_bytes_per_s: 1, direction: each, latency_s: 0}
  - {name: second, ends: [a, c], bandwidth_bytes_per_s: 1, direction: each, latency_s: 0}
  - {ends: [c, b], bandwidth_bytes_per_s: 99, direction: each, latency_s: 0}
"""
    nodes = "devices: [{name: a, type: d}, {name: b, type: d}, {name: c, type: d}]\nswitches: [{name: s}, {name: t}]\n"
    machine = parse_topology(TYPE + nodes + links)
    assert machine.route(0, 1).nodes == ("a", "t", "b")  # not through c, a device that does not forward
    assert machine.route(0, 2).nodes == ("a", "c")  # direct although narrow
    assert machine.resources[machine.route(0, 2).uses[0][0]].name == "a->c"  # of two alike, the first


def test_devices_that_forward_make_a_mesh():
    ring = "devices: [{name: a, type: d}, {name: b, type: d}, {name: c, type: d}]\nlinks:\n" + "".join(
        f"  - {{ends: [{a}, {b}], bandwidth_bytes_per_s: 10, direction: each, latency_s: 0}}\n" for a, b in ("ab", "bc")
    )
    with pytest.raises(TopologyError, match="expected a path from a to c, found none"):
        parse_topology(TYPE + ring)
    mesh = TYPE.replace("launch_latency_s: 0", "launch_latency_s: 0\n    forwards_traffic: true")
    assert parse_topology(mesh + ring).route(0, 2).nodes == ("a", "b", "c")


SHARED = """
devices:
  - {name: a, type: d, processor: cpu, memory: dram}
  - {name: b, type: d, processor: cpu, memory: dram}
processors: [{name: cpu, cores: 2}]
memories: [{name: dram, memory_bytes: 5000, memory_bandwidth_bytes_per_s: 3000}]
switches: [{name: host, staged_in: dram}]
links:
  - {ends: [a, host], bandwidth_bytes_per_s: 10, direction: each, latency_s: 0}
  - {ends: [host, b], bandwidth_bytes_per_s: 10, direction: each, latency_s: 0}
"""
NO_MEMORY = TYPE.replace("    memory_bytes: 1000\n", "")


def test_shared_processor_memory_and_staging():
    machine = parse_topology(NO_MEMORY + SHARED)
    (memory,) = machine.memories
    assert (memory.name, memory.nbytes, memory.devices) == ("dram", 5000, (0, 1))
    uses = {machine.resources[r].name: amount for r, amount in machine.route(0, 1).uses}
    # read at a, staged (written and read), written at b: four passes over one bus
    assert uses == {"a->host": 1, "host->b": 1, "dram": 4}
    assert machine.devices[0].processor == machine.devices[1].processor


def test_messages_may_cost_processor_time():
    text = NO_MEMORY.replace("launch_latency_s: 0", "launch_latency_s: 0\n    message_core_s_per_byte: 0.5")
    machine = parse_topology(text + SHARED)
    assert machine.route(0, 1).uses[-2:] == ((4, 1.0), (5, 4.0))  # half a core second at each end; the bus


ERRORS = {
    "empty": ("", r"\$: expected a mapping, found nothing"),
    "not yaml": ("[", "expected YAML, found"),
    "key twice": (PAIR + "\nname: again\n", "the key 'name' twice"),
    "unknown key": (PAIR + "\nspeed: 3\n", r"\$: expected only known keys, found 'speed'"),
    "unknown key in a link": (
        PAIR.replace("latency_s: 1}", "latency_s: 1, mtu: 9}"),
        r"\$\.links\[0\]: expected only known keys, found 'mtu'",
    ),
    "missing key": (
        PAIR.replace(", latency_s: 1", ""),
        r"\$\.links\[a-s\]: expected the key 'latency_s', or a type, found none",
    ),
    "format": (PAIR.replace("topology/1", "topology/9"), r"\$\.format: .*found 'topology/9'"),
    "text for a number": (
        PAIR.replace("bandwidth_bytes_per_s: 10,", "bandwidth_bytes_per_s: fast,"),
        r"\$\.links\[0\]\.bandwidth_bytes_per_s: expected .*, found 'fast'",
    ),
    "zero": (
        PAIR.replace("bandwidth_bytes_per_s: 10,", "bandwidth_bytes_per_s: 0,"),
        r"\$\.links\[0\]\.bandwidth_bytes_per_s: expected .* >= 1e-06, found 0",
    ),
    "a unit": (
        PAIR.replace("memory_bytes: 1000", "memory_bytes: 2GB"),
        r"device_types\[0\]\.memory_bytes: expected a number of bytes, as 2\.0e9, found '2GB'",
    ),
    "text for a list": (TYPE + "devices: two", r"\$\.devices: expected a list, found 'two'"),
    "infinite": (PAIR.replace("memory_bytes: 1000", "memory_bytes: .inf"), r"memory_bytes: expected .*, found inf"),
    "not a number": (PAIR.replace("memory_bytes: 1000", "memory_bytes: .nan"), r"memory_bytes: expected .*, found nan"),
    "too large": (
        PAIR.replace("memory_bytes: 1000", "memory_bytes: 1" + 400 * "0"),
        r"memory_bytes: expected a number that a float can hold, found 1000",
    ),
    "number for a key": (PAIR + "\n1: 2\n", r"\$: expected text for a key"),
    "too long": ("a: 0x" + "f" * 5000, "expected YAML, found a number of more than 1024 digits"),
    "too many": (
        "format: [[1], &x0 [1]" + "".join(f", &x{n} [*x{n - 1}, *x{n - 1}]" for n in range(1, 40)) + "]",
        "expected YAML, found more than 262144 values",
    ),
    "too deep": ("a: " + "[" * 5000, "expected YAML, found maximum recursion depth"),
    "efficiency above one": (PAIR.replace("matmul: 1", "matmul: 1.5"), r"efficiency\.matmul: expected .*, found 1\.5"),
    "efficiency missing": (PAIR.replace("matmul: 1, ", ""), r"efficiency: expected the key 'matmul', found none"),
    "no dtype": (
        PAIR.replace("{float32: 100}", "{}"),
        r"\$\.device_types\[d\]\.peak_flop_per_s: expected one of .*, found none",
    ),
    "direction": (PAIR.replace("direction: each", "direction: both"), r"\$\.links\[0\]\.direction: .*, found 'both'"),
    "duplicate type": (
        PAIR.replace("devices: [", TYPE[TYPE.index("  - name") :] + "devices: ["),
        r"\$\.device_types: expected unique names, found 'd' twice",
    ),
    "duplicate device": (
        PAIR.replace("{name: b", "{name: a"),
        r"\$\.devices and switches: expected unique names, found 'a' twice",
    ),
    "device named as a switch": (PAIR.replace("{name: s}", "{name: b}"), r"\$\.devices and switches: .*found 'b'"),
    "duplicate link": (PAIR.replace("ends: [s, b]", "ends: [a, s]"), r"\$\.links: expected unique names, found 'a-s'"),
    "unknown type": (
        PAIR.replace("name: b, type: d", "name: b, type: e"),
        r"\$\.devices\[b\]\.type: .*\(.*\bgk210\b.*\), found 'e'",
    ),
    "unknown end": (PAIR.replace("ends: [s, b]", "ends: [s, z]"), r"\$\.links\[s-z\]\.ends: .*\(a, b, s\), found 'z'"),
    "link to itself": (PAIR.replace("ends: [s, b]", "ends: [s, s]"), r"\$\.links\[s-s\]\.ends: expected two different"),
    "unreachable": (
        PAIR.replace("ends: [s, b]", "ends: [s, t]").replace("{name: s}", "{name: s}, {name: t}"),
        r"\$\.links: expected a path from a to b, found none",
    ),
    "no memory": (
        PAIR.replace("    memory_bytes: 1000\n", ""),
        r"\$\.device_types\[d\]\.memory_bytes: expected a number, because a names no memory, found none",
    ),
    "two memories": (TYPE + SHARED, r"memory_bytes: expected none, because a uses memory dram, found 1000"),
    "unknown memory": (
        NO_MEMORY + SHARED.replace("memory: dram}", "memory: ram}", 1),
        r"\$\.devices\[a\]\.memory: .*found 'ram'",
    ),
    "unknown processor": (NO_MEMORY + SHARED.replace("processor: cpu", "processor: gpu", 1), r"found 'gpu'"),
    "unknown staging": (NO_MEMORY + SHARED.replace("staged_in: dram", "staged_in: disk"), r"staged_in: .*found 'disk'"),
    "too few cores": (
        NO_MEMORY.replace("launch_latency_s: 0", "launch_latency_s: 0\n    cores: 4") + SHARED,
        r"\$\.devices\[a\]\.processor: expected a processor of 4 or more cores, found cpu with 2",
    ),
}


@pytest.mark.parametrize(("text", "message"), ERRORS.values(), ids=ERRORS)
def test_mistakes_are_one_line_that_names_file_and_place(text, message):
    with in_one_line(TopologyError, rf"^file\.yaml: .*{message}"):
        parse_topology(text, "file.yaml")
