"""The package's machines, devices and links, against figures worked out by hand from their sources."""

import re
import warnings

import pytest

from topologies import Kernel, TopologyError, available, full_text, levels, load_topology, parse_topology, reading
from topologies.load import sold

NAMES = [re.sub(r"-K$", "-2", name) for name in available()]


def gpus(name, count):
    devices = load_topology(name).devices
    return [device.spec.name for device in devices] == [devices[0].spec.name] * count


@pytest.mark.parametrize("name", NAMES)
def test_every_machine_loads_without_doubts_and_says_the_same_in_full(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        machine = load_topology(name)
    again = parse_topology(full_text(name))
    assert machine.name == name
    assert (again.devices, again.links, again.resources) == (machine.devices, machine.links, machine.resources)
    assert dict(again.routes) == dict(machine.routes)


@pytest.mark.parametrize("name", available())
def test_every_machine_names_sources(name):
    text = (reading.MACHINES / f"{name}.yaml").read_text()
    assert re.search(
        r"github\.com|data sheet|white paper|Amazon|NVIDIA|p2\.8xlarge|\(Tofu\)", text.partition("format:")[0]
    )


@pytest.mark.parametrize("name", reading.device_names())
def test_every_device_is_found_by_its_name_and_identity(name):
    kind = reading.device_type(name)
    assert kind.name == name
    assert kind.pci_ids
    others = [reading.device_type(other) for other in reading.device_names() if other != name]
    assert not {identity for other in others for identity in other.pci_ids} & set(kind.pci_ids)
    if kind.nvlinks is not None:
        assert {kind.nvlinks.direct, kind.nvlinks.switched or kind.nvlinks.direct} <= set(reading.link_types())


OF_EIGHT = (
    *("p2.8xlarge", "p2.8xlarge-halves", "pcie-8x-gtx1080", "pcie-8x-rtx4090", "dgx-1-p100", "dgx-1-v100", "dgx-a100"),
    *("p4d.24xlarge", "hgx-h100", "hgx-h200", "mi300x-platform", "p6-b200.48xlarge"),
)
COUNTS = {
    **dict.fromkeys(OF_EIGHT, 8),
    "p2.16xlarge": 16,
    "p6-b200-nodes-4": 32,
    "p4d-nodes-2": 16,
    "p4d-nodes-16": 128,
    "hgx-h100-nodes-2": 16,
    "hgx-h100-nodes-16": 128,
    "dgx-a100-pod-20": 160,
    "uniform-1": 1,
    "uniform-16": 16,
}


@pytest.mark.parametrize("name", COUNTS)
def test_devices(name):
    assert gpus(name, COUNTS[name])


def test_halves_share_one_link():
    whole, halves = load_topology("p2.8xlarge"), load_topology("p2.8xlarge-halves")
    assert halves.route(0, 3).nodes == ("gpu0", "board0", "half0", "board1", "gpu3")
    assert halves.route(0, 4).nodes == ("gpu0", "board0", "half0", "half1", "board2", "gpu4")
    # all 32 pairs between the halves cross 10.5e9 bytes/s each way: 16 a direction; from a board, 8 of them
    assert levels(halves, (2, 4))[0].bandwidth_bytes_per_s == pytest.approx(32 / 16 * 10.5e9)
    assert levels(whole, (2, 4))[0].bandwidth_bytes_per_s == pytest.approx(32 / 8 * 10.5e9)


def test_two_sockets():
    machine = load_topology("pcie-8x-gtx1080")
    assert machine.route(0, 1).nodes == ("gpu0", "plx0", "gpu1")
    assert machine.route(0, 2).nodes == ("gpu0", "plx0", "cpu0", "plx1", "gpu2")
    assert machine.route(0, 7).nodes == ("gpu0", "plx0", "cpu0", "cpu1", "plx3", "gpu7")
    assert machine.bandwidth_bytes_per_s(0, 7) == 6e9  # NCCL's QPI


@pytest.mark.parametrize(("name", "links", "bandwidth"), [("dgx-1-p100", 4, 18e9), ("dgx-1-v100", 6, 20e9)])
def test_cube_meshes(name, links, bandwidth):
    machine = load_topology(name)
    nvlinks = [link for link in machine.links if link.type.startswith("nvlink")]
    for device in machine.devices:  # every GPU uses all of its NVLinks
        assert sum(link.count for link in nvlinks if device.name in link.ends) == links
    assert machine.bandwidth_bytes_per_s(0, 1) == bandwidth
    within = {frozenset(link.ends) for link in nvlinks}
    assert {frozenset((f"gpu{a}", f"gpu{b}")) for h in (0, 4) for a in range(h, h + 4) for b in range(h, a)} <= within
    assert len(within) == 16
    assert machine.route(0, 5).nodes == ("gpu0", "plx0", "cpu0", "cpu1", "plx2", "gpu5")  # GPUs pass nothing on


@pytest.mark.parametrize(("name", "bandwidth"), [("p4d.24xlarge", 12 * 20e9), ("hgx-h100", 18 * 20.6e9)])
def test_switched_nvlinks(name, bandwidth):
    machine = load_topology(name)
    assert machine.route(2, 5).nodes == ("gpu2", "nvswitch", "gpu5")
    assert machine.bandwidth_bytes_per_s(2, 5) == pytest.approx(bandwidth)
    assert machine.route(2, 5).latency_s == pytest.approx(3.4e-6)
    # everyone to everyone: each GPU's links carry seven messages each way
    assert levels(machine, (8,))[0].bandwidth_bytes_per_s == pytest.approx(8 * bandwidth)


def test_nodes_and_their_network():
    machine = load_topology("p4d-nodes-2")
    route = machine.route(1, 15)
    assert route.nodes == (
        *("node0/gpu1", "node0/plx0", "node0/nic0", "network"),
        *("node1/nic3", "node1/plx3", "node1/gpu7"),
    )
    assert machine.bandwidth_bytes_per_s(1, 15) == 12e9
    assert machine.route(1, 6).nodes == ("node0/gpu1", "node0/nvswitch", "node0/gpu6")
    # between nodes 2 x 8 x 8 pairs; an adapter serves two GPUs, 16 of the pairs each way
    assert levels(machine, (2, 8))[0].bandwidth_bytes_per_s == pytest.approx(128 / 16 * 12e9)


def test_a_pod_has_rails_under_a_spine():
    machine = load_topology("dgx-a100-pod-4")
    own_rail, other_rail = machine.route(0, 8), machine.route(0, 12)
    assert own_rail.nodes[1:-1] == ("node0/plx0", "node0/nic0", "rail0", "node1/nic0", "node1/plx0")
    assert [node for node in other_rail.nodes if node.startswith(("rail", "spine"))] == ["rail0", "spine", "rail4"]
    assert machine.bandwidth_bytes_per_s(0, 12) == 24e9
    uplink = next(r for r, resource in enumerate(machine.resources) if resource.name == "rail0->spine")
    assert machine.resources[uplink].capacity == 20 * 24e9


@pytest.mark.parametrize("gigabits", [10, 25, 40, 50, 100, 200, 400])
def test_ethernet_carries_what_infiniband_of_its_rate_does(gigabits):
    assert reading.link_type(f"ethernet-{gigabits}g").bandwidth_bytes_per_s == pytest.approx(gigabits * 0.12e9)


@pytest.mark.parametrize("name", reading.device_names())
def test_what_is_reserved_is_little_of_a_memory(name):
    """CUDA's context and NCCL's communicators: on a GPU of a cluster more than nothing, nowhere a tenth."""
    kind = reading.device_type(name)
    assert kind.reserved_bytes < 0.1 * kind.memory_bytes
    assert kind.reserved_bytes > 0 or not name.startswith(("a100", "h100", "h200", "b200", "gb200", "l4", "t4", "mi"))


def test_what_hosts_stage():
    machine = load_topology("pcie-8x-rtx4090")
    names = {machine.resources[r].name: amount for r, amount in machine.route(0, 7).uses}
    assert names == {
        "gpu0->cpu0": 1,
        "cpu0->cpu1": 1,
        "cpu1->gpu7": 1,
        "dram0": 2,
        "dram1": 2,
        "gpu0.memory": 1,
        "gpu7.memory": 1,
    }


@pytest.mark.parametrize("name", ["uniform-0", "uniform-08", "uniform--1", "uniform-12345", "uniform-"])
def test_families_take_numbers(name):
    with pytest.raises(TopologyError, match=r"expected a number instead of K, as in uniform-16; found none"):
        load_topology("uniform-K")
    with pytest.raises(TopologyError, match="expected a topology file, a name that"):
        load_topology(name)


@pytest.fixture(scope="module")
def p2():
    return load_topology("p2.8xlarge")


@pytest.mark.parametrize("name", ["p2.8xlarge", "p2.8xlarge.yaml"])
def test_by_name_with_and_without_suffix(name):
    assert load_topology(name).name == "p2.8xlarge"


def test_a_path_wins(tmp_path):
    path = tmp_path / "p2.8xlarge.yaml"
    path.write_text(full_text("uniform-1"))
    assert load_topology(path).name == "uniform-1"


@pytest.mark.parametrize(("name", "near"), [("dgx-h10", "dgx-h100"), ("p5.48xlarg", "p5.48xlarge")])
def test_hints_know_the_names_of_products(name, near):
    with pytest.raises(TopologyError, match=f"did you mean {re.escape(near)}, "):
        load_topology(name)


def test_the_number_of_a_version_may_be_left_out():
    assert load_topology("8 x h100-sxm").devices == load_topology("8 x h100").devices
    assert load_topology("2 x 8 x h100, 400G rails").links == load_topology("2 x 8 x h100, 400G").links
    with pytest.raises(TopologyError, match=r"found 'h10'"):
        load_topology("8 x h10")


def test_unknown_name_lists_what_exists():
    expected = r"^p3: expected a topology file, a name .*, or a line such as .*, found none of these$"
    with pytest.raises(TopologyError, match=expected):
        load_topology("p3")


@pytest.mark.parametrize("name", sold())
def test_names_under_which_machines_are_sold_stand_for_lines(name):
    rate = sold()[name].gbit_per_s
    machine, several = load_topology(name), load_topology(f"{name}-nodes-2")
    assert full_text(name) == full_text(sold()[name].node)
    assert [device.spec for device in several.devices] == [device.spec for device in machine.devices] * 2
    assert several.bandwidth_bytes_per_s(0, len(machine.devices)) <= rate * 1e9 / 8
    assert several.bandwidth_bytes_per_s(0, 1) == machine.bandwidth_bytes_per_s(0, 1)


def test_p2_devices(p2):
    assert len(p2.devices) == 8
    assert [memory.devices for memory in p2.memories] == [(i,) for i in range(8)]
    assert all(memory.nbytes == pytest.approx(11.17 * 2**30, rel=1e-3) for memory in p2.memories)
    # a product of no known shape: 2 x 4096^3 flop at 0.66 x 4.11e12 flop/s
    uniform = load_topology("uniform-8")
    assert uniform.devices[0].kernel_s(Kernel("matmul", "float32", 2 * 4096**3, 3 * 4 * 4096**2)) == pytest.approx(
        2 * 4096**3 / (0.66 * 4.11e12)
    )
    # an addition of 1e9 bytes read and written is bound by memory: 1e9 / (0.75 x 240e9)
    assert p2.devices[0].kernel_s(Kernel("elementwise", "float32", 1e8, 1e9)) == pytest.approx(1e9 / 180e9)


def test_p2_routes(p2):
    assert p2.route(0, 1).nodes == ("gpu0", "board0", "gpu1")
    assert p2.route(0, 7).nodes == ("gpu0", "board0", "fabric", "board3", "gpu7")
    assert p2.route(7, 0).nodes == ("gpu7", "board3", "fabric", "board0", "gpu0")
    names = [p2.resources[r].name for r, _ in p2.route(2, 4).uses]
    assert names == ["gpu2->board1", "board2->gpu4", "board1->fabric", "fabric->board2", "gpu2.memory", "gpu4.memory"]
    assert p2.route(0, 1).latency_s == pytest.approx(5.7e-6)
    assert p2.route(0, 2).latency_s == pytest.approx(5.9e-6)


def test_p2_levels(p2):
    first, second, third = levels(p2, (2, 2, 2))
    # between halves {0..3} and {4..7}: 32 pairs; each board's uplink carries 2 GPUs x 4 peers = 8 of them, so in
    # 8 / 10.5e9 s per byte of each pair: 32 x 10.5e9 / 8
    assert first.bandwidth_bytes_per_s == pytest.approx(32 / 8 * 10.5e9)
    # between boards of a half: 2 x 2 x 4 = 16 pairs; an uplink carries 2 x 2 = 4 of them
    assert second.bandwidth_bytes_per_s == pytest.approx(16 / 4 * 10.5e9)
    # within boards: 8 pairs, each on its own links
    assert third.bandwidth_bytes_per_s == pytest.approx(8 * 10.5e9)


def test_too_many_workers_is_one_line(p2):
    with pytest.raises(TopologyError, match=r"^p2.8xlarge: expected at least 16 devices.*found 8$"):
        levels(p2, (4, 4))


def test_uniform_levels_are_all_at_full_speed():
    machine = load_topology("uniform-8")
    assert [level.bandwidth_bytes_per_s for level in levels(machine, (2, 4))] == pytest.approx([8 * 10.5e9] * 2)


def test_integers_count_as_the_slowest_dtype_and_an_unlisted_float_is_refused(p2):
    assert p2.devices[0].peak("int32") == p2.devices[0].peak("bool") == 1.37e12
    with pytest.raises(
        TopologyError, match=r"device type gk210: expected peak_flop_per_s of float16, found only float32"
    ):
        p2.devices[0].peak("float16")


@pytest.mark.parametrize("name", available())
def test_no_route_passes_through_a_device(name):
    machine = load_topology(name.replace("-K", "-2"))
    devices = {device.name for device in machine.devices}
    for source, target in machine.routes:
        assert not devices & {*machine.route(source, target).nodes[1:-1]}, (source, target)
