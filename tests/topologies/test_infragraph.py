"""A description of InfraGraph's, worked out by hand, and what is wrong with others."""

import json

import pytest
import yaml

from topologies import TopologyError, load_topology
from topologies.imports import import_machine

V100 = "v100-sxm2-16gb"

HOST = """
  - name: host
    components:
      - {name: cpu, count: 1, choice: cpu, cpu: {}}
      - {name: xpu, count: 4, choice: xpu, xpu: {}}
      - {name: nvsw, count: 2, choice: switch, switch: {}}
      - {name: plx, count: 2, choice: switch, switch: {}}
      - {name: card, count: 2, choice: device, device: {}}
      - {name: ram, count: 1, choice: memory, memory: {}}
    links:
      - {name: pcie, description: PCI Express Gen4 x16}
      - {name: nvlink, physical: {bandwidth: {choice: gigabytes_per_second, gigabytes_per_second: 60}}}
      - {name: ddr}
    edges:
      - {ep1: {component: "cpu[0]"}, ep2: {component: "plx[:]"}, scheme: many2many, link: pcie}
      - {ep1: {component: "plx[0]"}, ep2: {component: "xpu[:2]"}, scheme: many2many, link: pcie}
      - {ep1: {component: "plx[1]"}, ep2: {component: "xpu[-2:]"}, scheme: many2many, link: pcie}
      - {ep1: {component: "xpu"}, ep2: {component: "nvsw"}, scheme: many2many, link: nvlink}
      - {ep1: {component: "plx"}, ep2: {component: "card[0:2].slot[0]"}, scheme: one2one, link: pcie}
      - {ep1: {component: "cpu"}, ep2: {component: "ram"}, scheme: one2one, link: ddr}
"""
CARD = """
  - name: card
    components:
      - {name: slot, count: 1, choice: custom, custom: {type: pcie}}
      - {name: port, count: 1, choice: port, port: {}}
    links: [{name: inside}]
    edges: [{ep1: {component: "slot[0]"}, ep2: {component: "port[0]"}, scheme: one2one, link: inside}]
"""
LEAF = """
  - name: leaf
    components:
      - {name: asic, count: 1, choice: cpu, cpu: {}}
      - {name: port, count: 4, choice: port, port: {}}
    links: [{name: ic}]
    edges: [{ep1: {component: asic}, ep2: {component: port}, scheme: many2many, link: ic}]
"""
BETWEEN = """
instances:
  - {name: host, device: host, count: 2}
  - {name: leaf, device: leaf, count: 1}
links:
  - name: eth
    physical:
      bandwidth: {choice: gigabits_per_second, gigabits_per_second: 200}
      latency: {choice: us, us: 1.5}
edges:
  - ep1: {instance: "host[0:2]", component: "card[0:2].port[0]"}
    ep2: {instance: "leaf[0]", component: "port[0:4]"}
    scheme: one2one
    link: eth
"""
TEXT = f"name: cluster\ndevices:{HOST}{CARD}{LEAF}{BETWEEN}"


@pytest.fixture
def imported(tmp_path):
    def run(text, device=V100):
        path = tmp_path / "cluster.yaml"
        path.write_text(text)
        return import_machine(path, device)

    return run


def test_a_cluster_by_hand(imported):
    """Two hosts of four: by hand, NVLinks join all four, cards and the leaf's ports are one node each."""
    machine = imported(TEXT).machine
    names = [f"host.{host}/gpu{gpu}" for host in range(2) for gpu in range(4)]
    assert [device.name for device in machine.devices] == names
    assert machine.nodes_of(range(8)) == {"host.0": (0, 1, 2, 3), "host.1": (4, 5, 6, 7)}
    found = {link.ends: (link.type, link.count, link.bandwidth_bytes_per_s) for link in machine.links}
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
    assert {ends: kind[:2] for ends, kind in found.items()} == expected
    (nvlink,) = {kind[2] for kind in found.values() if kind[0].startswith("nvlink")}
    assert nvlink == 2 * 60e9
    assert machine.route(0, 1).nodes == ("host.0/gpu0", "host.0/nvsw0", "host.0/gpu1")
    across = machine.route(0, 4)
    assert across.nodes == (
        *("host.0/gpu0", "host.0/plx0", "host.0/port0", "leaf.0/asic0"),
        *("host.1/port0", "host.1/plx0", "host.1/gpu0"),
    )
    assert across.latency_s == pytest.approx(2 * (2.85e-6 + 0.1e-6 + 1.5e-6))


def test_what_is_written_is_read_as_a_machine(imported, tmp_path):
    found = imported(TEXT)
    (tmp_path / "again.yaml").write_text(found.text)
    again = load_topology(str(tmp_path / "again.yaml"))
    assert (again.links, again.devices) == (found.machine.links, found.machine.devices)
    assert any("say no latency" in note for note in found.notes)
    assert all(f"# {note}\n" in found.text for note in found.notes)


def test_json_and_a_nested_infrastructure_are_the_same(imported):
    data = yaml.safe_load(TEXT)
    expected = imported(TEXT).machine.links
    assert imported(json.dumps(data)).machine.links == expected
    assert imported(yaml.safe_dump({"infrastructure": data})).machine.links == expected
    assert imported(json.dumps({"infrastructure": data}, indent=1)).machine.links == expected


def test_nvlinks_without_a_bandwidth_are_those_of_the_device(imported):
    text = TEXT.replace(", physical: {bandwidth: {choice: gigabytes_per_second, gigabytes_per_second: 60}}", "")
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
        ("xpu[:2]", "xpu[9]", r"xpu: expected indices of 4, found \[9\]"),
        ("scheme: many2many", "scheme: ring", "expected .*, found 'ring'"),
        ("count: 4, choice: xpu", "count: 0, choice: xpu", "count: expected"),
        ("edges:\n  - ep1: {instance", "connections:\n  - ep1: {instance", None),
    ],
)
def test_what_is_wrong_is_one_line(imported, old, new, said):
    text = TEXT.replace(old, new)
    assert text != TEXT
    if said is None:  # hosts that nothing joins
        said = "expected|no route|found"
    with pytest.raises(TopologyError, match=said) as refused:
        imported(text)
    assert "\n" not in str(refused.value)


def test_devices_within_themselves_end(imported):
    with pytest.raises(TopologyError, match="at most 8 deep"):
        imported(
            TEXT.replace("{name: port, count: 1, choice: port, port: {}}", "{name: card, count: 1, choice: device}")
        )
