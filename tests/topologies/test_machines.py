"""The package's own machines, against figures worked out by hand from what is published of them."""

import pytest

from topologies import Kernel, Machine, TopologyError, available, levels, load_topology


@pytest.fixture(scope="module")
def p2():
    return load_topology("p2.8xlarge")


def test_the_packages_own_machines():
    assert set(available()) >= {"p2.8xlarge", "uniform-K"}


@pytest.mark.parametrize("name", ["p2.8xlarge", "p2.8xlarge.yaml"])
def test_by_name_with_and_without_suffix(name):
    assert load_topology(name).name == "p2.8xlarge"


def test_a_path_wins(tmp_path, p2):
    path = tmp_path / "p2.8xlarge.yaml"
    path.write_text(MINIMAL)
    assert load_topology(path).name == "minimal"


def test_unknown_name_lists_what_exists():
    with pytest.raises(TopologyError, match=r"^p3: expected .* one of .*p2\.8xlarge.*, uniform-K; found neither$"):
        load_topology("p3")


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
    assert names == [
        "gpu2->board1",
        "board2->gpu4",
        "board1->fabric",
        "fabric->board2",
        "gpu2.memory",
        "gpu4.memory",
    ]
    assert p2.route(0, 1).latency_s == pytest.approx(5.7e-6)
    assert p2.route(0, 2).latency_s == pytest.approx(5.9e-6)


def test_p2_bandwidths(p2):
    # 21 GB/s both ways together: 10.5 GB/s each way, near or far, when alone
    assert {p2.bandwidth_bytes_per_s(u, w) for u in range(8) for w in range(8) if u != w} == {10.5e9}


def test_p2_levels(p2):
    first, second, third = levels(p2, (2, 2, 2))
    # between halves {0..3} and {4..7}: 32 pairs; each board's uplink carries 2 GPUs x 4 peers = 8 of them, so in
    # 8 / 10.5e9 s per byte of each pair: 32 x 10.5e9 / 8
    assert first.bandwidth_bytes_per_s == pytest.approx(32 / 8 * 10.5e9)
    # between boards of a half: 2 x 2 x 4 = 16 pairs; an uplink carries 2 x 2 = 4 of them
    assert second.bandwidth_bytes_per_s == pytest.approx(16 / 4 * 10.5e9)
    # within boards: 8 pairs, each on its own links
    assert third.bandwidth_bytes_per_s == pytest.approx(8 * 10.5e9)


def test_uniform_levels_are_all_at_full_speed():
    machine = load_topology("uniform-8")
    assert [level.bandwidth_bytes_per_s for level in levels(machine, (2, 4))] == pytest.approx([8 * 10.5e9] * 2)


def test_too_many_workers_is_one_line(p2):
    with pytest.raises(TopologyError, match=r"^p2.8xlarge: expected at least 16 devices.*found 8$"):
        levels(p2, (4, 4))


def test_integers_count_as_the_slowest_dtype_and_an_unlisted_float_is_refused(p2):
    assert p2.devices[0].peak("int32") == p2.devices[0].peak("bool") == 1.37e12
    with pytest.raises(
        TopologyError, match=r"device type gk210: expected peak_flop_per_s of float16, found only float32"
    ):
        p2.devices[0].peak("float16")


def test_machine_is_immutable(p2):
    assert isinstance(p2, Machine)
    with pytest.raises(AttributeError):
        p2.name = "other"


MINIMAL = """
format: topology/1
name: minimal
description: one device
device_types:
  - name: d
    peak_flop_per_s: {float32: 1e9}
    memory_bytes: 1e9
    memory_bandwidth_bytes_per_s: 1e9
    efficiency: {matmul: 1, convolution: 1, reduction: 1, elementwise: 1, other: 1}
    launch_latency_s: 0
devices: [{name: only, type: d}]
"""
