"""A description of InfraGraph's, worked out by hand, and what is wrong with others."""

import json

import pytest
import yaml

from tests.launcher import in_one_line
from tests.topologies.samples import INFRAGRAPH
from topologies import TopologyError, load_topology
from topologies.imports import import_machine

EXTRA, DEVICE = "infragraph", "v100-sxm2-16gb"


def test_a_cluster_by_hand(imported):
    """Two hosts of four: by hand, NVLinks join all four, cards and the leaf's ports are one node each."""
    machine = imported(INFRAGRAPH).machine
    names = [f"host.{host}/gpu{gpu}" for host in range(2) for gpu in range(4)]
    assert [device.name for device in machine.devices] == names
    assert machine.nodes_of(range(8)) == {"host.0": (0, 1, 2, 3), "host.1": (4, 5, 6, 7)}
    links = {link.ends: (link.type, link.count, link.bandwidth_bytes_per_s) for link in machine.links}
    expected = {}
    for host in ("host.0", "host.1"):
        for plx in range(2):
            expected[f"{host}/cpu0", f"{host}/plx{plx}"] = ("pcie4x16-uplink", 1)
            expected[f"{host}/plx{plx}", f"{host}/port{plx}"] = ("pcie4x16-uplink", 1)
            expected[f"{host}/port{plx}", "leaf.0/asic0"] = ("eth-25GBps", 1)
            for gpu in (2 * plx, 2 * plx + 1):
                expected[f"{host}/plx{plx}", f"{host}/gpu{gpu}"] = ("pcie4x16", 1)
        for gpu in range(4):
            expected[f"{host}/gpu{gpu}", f"{host}/nvsw0"] = ("nvlink-60GBps", 2)
    assert {ends: kind[:2] for ends, kind in links.items()} == expected
    (nvlink,) = {kind[2] for kind in links.values() if kind[0].startswith("nvlink")}
    assert nvlink == 2 * 60e9
    assert machine.route(0, 1).nodes == ("host.0/gpu0", "host.0/nvsw0", "host.0/gpu1")
    across = machine.route(0, 4)
    assert across.nodes == (
        *("host.0/gpu0", "host.0/plx0", "host.0/port0", "leaf.0/asic0"),
        *("host.1/port0", "host.1/plx0", "host.1/gpu0"),
    )
    assert across.latency_s == pytest.approx(2 * (2.85e-6 + 0.1e-6 + 1.5e-6))


def test_what_is_written_is_read_as_a_machine(imported, tmp_path):
    topology = imported(INFRAGRAPH)
    (tmp_path / "again.yaml").write_text(topology.text)
    again = load_topology(str(tmp_path / "again.yaml"))
    assert (again.links, again.devices) == (topology.machine.links, topology.machine.devices)
    assert any("have no latency" in note for note in topology.notes)
    assert all(f"# {note}\n" in topology.text for note in topology.notes)


def test_json_and_a_nested_infrastructure_are_the_same(imported):
    data = yaml.safe_load(INFRAGRAPH)
    expected = imported(INFRAGRAPH).machine.links
    assert imported(json.dumps(data)).machine.links == expected
    assert imported(yaml.safe_dump({"infrastructure": data})).machine.links == expected
    assert imported(json.dumps({"infrastructure": data}, indent=1)).machine.links == expected


def test_nvlinks_without_a_bandwidth_are_those_of_the_device(imported):
    text = INFRAGRAPH.replace(", physical: {bandwidth: {choice: gigabytes_per_second, gigabytes_per_second: 60}}", "")
    links = [link for link in imported(text).machine.links if link.type == "nvlink2-switch"]
    assert {link.count for link in links} == {6}  # all that a V100 has
    assert len(links) == 8


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("choice: xpu", "choice: cpu", "expected components of choice xpu, found none"),
        (
            ": {choice: gigabits_per_second, gigabits_per_second: 200}",
            ": null",
            "link eth: expected physical.bandwidth, found none",
        ),
        ("link: nvlink}", "link: nvlinks}", "expected a link among pcie, nvlink, ddr, found 'nvlinks'"),
        ('component: "cpu[0]"', 'component: "gpu[0]"', "host: expected a component, found 'gpu'"),
        ("device: leaf, count", "device: spine, count", "expected a device among host, card, leaf, found 'spine'"),
        ('instance: "leaf[0]"', 'instance: "spine[0]"', "expected an instance among host, leaf, found 'spine'"),
        ("xpu[:2]", "xpu[9]", r"xpu: expected indices below 4, found \[9\]"),
        ("scheme: many2many", "scheme: ring", "expected .*, found 'ring'"),
        ("count: 4, choice: xpu", "count: 0, choice: xpu", "count: expected"),
        ("edges:\n  - ep1: {instance", "connections:\n  - ep1: {instance", None),
    ],
)
def test_what_is_wrong_is_one_line(imported, old, new, said):
    text = INFRAGRAPH.replace(old, new)
    assert text != INFRAGRAPH
    if said is None:  # hosts that nothing joins
        said = "expected|no route|found"
    with in_one_line(TopologyError, said):
        imported(text)


def test_devices_within_themselves_end(imported):
    with pytest.raises(TopologyError, match="at most 8 deep"):
        imported(
            INFRAGRAPH.replace(
                "{name: port, count: 1, choice: port, port: {}}", "{name: card, count: 1, choice: device}"
            )
        )


def test_without_the_package_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr("topologies.imports.entry_points", lambda group: ())
    for name, text in (("cluster.yaml", INFRAGRAPH), ("cluster.json", json.dumps(yaml.safe_load(INFRAGRAPH)))):
        (tmp_path / name).write_text(text)
        with in_one_line(TopologyError, r"found a mapping; .*pip install extras/infragraph"):
            import_machine(tmp_path / name, DEVICE)
