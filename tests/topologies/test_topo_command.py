"""The command `topo`: what it prints, writes and refuses."""

import re
from functools import partial

import pytest

from tensor_partitioner.commands.topo import main
from tests.launcher import outcome
from tests.topologies.samples import NCCL, NVLINKS
from topologies import available, full_text, load_topology, parse_topology


@pytest.fixture
def topo(capsys):
    return partial(outcome, capsys, main)


def test_show_draws_and_tabulates(topo):
    status, out, err = topo("show", "p2.8xlarge")
    assert (status, err) == (0, "")
    tree = out[: out.index("machine p2.8xlarge")]
    assert [len(line) - len(line.lstrip("│├└─ ")) for line in tree.splitlines()[:4]] == [0, 4, 8, 12]
    assert re.findall(r"(gpu\d) \(gk210\)", tree) == [f"gpu{i}" for i in range(8)]
    assert "bandwidth of one message alone, from row to column" in out
    assert len(re.findall(r"10\.5 GB/s", out[out.index("bandwidth of one") :])) == 8 * 7


def test_every_link_is_drawn_once(topo):
    for name in ("dgx-1-v100", "p4d.24xlarge", "pcie-8x-rtx4090"):
        _, out, _ = topo("show", name)
        tree = out[: out.index(f"machine {name}")]
        assert {*re.findall(r"(\w+) \(", tree)} == {f"gpu{i}" for i in range(8)}, name
        assert len(re.findall(r"B/s, [\d.]+ .s$", tree, re.MULTILINE)) == len(load_topology(name).links), name


def test_large_machines_are_shown_in_short(topo):
    status, out, _ = topo("show", "p4d-nodes-16")
    assert status == 0
    assert "16 alike: node0 … node15: " in out
    assert "links, the first 40 of 464" in out
    rows = [
        [cell.strip() for cell in line.split("│")[1:5]]
        for line in out.splitlines()
        if line.startswith("│ node0/gpu1 │")
    ]
    assert ["node0/gpu1", "7", "240 GB/s", "3.4 us"] in rows


def test_show_a_route(topo):
    status, out, _ = topo("show", "p2.8xlarge", "gpu0", "gpu5")
    assert status == 0
    hops = re.findall(r"│ (\w+ - \w+) ", out)
    assert hops == ["gpu0 - board0", "board0 - fabric", "fabric - board2", "board2 - gpu5"]
    assert re.search(r"latency +│ 5\.9 us", out)


def test_show_in_full_is_a_file(topo):
    status, out, _ = topo("show", "uniform-3", "--full")
    assert status == 0
    assert out == full_text("uniform-3")
    assert len(parse_topology(out).devices) == 3


def test_check(topo, tmp_path):
    fine, odd, wrong = (tmp_path / f"{name}.yaml" for name in ("fine", "odd", "wrong"))
    text = full_text("uniform-2")
    fine.write_text(text)
    odd.write_text(text.replace("10500000000.0", "10.5"))
    wrong.write_text(text.replace("ends: [gpu1", "ends: [gpu7"))
    assert topo("check", fine) == (0, f"{fine}: 2 devices, 2 links, no warnings\n", "")
    status, out, err = topo("check", odd, fine)
    assert status == 1
    assert err.startswith(f"warning: {odd}: $.link_types[0].bandwidth_bytes_per_s: ")
    assert err.count("\n") == 1
    status, out, err = topo("check", wrong, odd, fine)
    assert status == 2
    assert [line.partition(": ")[0] for line in err.splitlines()] == ["error", "warning"]
    assert out.startswith(f"{fine}: ")


def test_import(topo, tmp_path):
    given, written = tmp_path / "given.xml", tmp_path / "own.yaml"
    given.write_text(NCCL)
    status, out, err = topo("import", given, "-o", written)
    assert status == 0
    assert out == f"{written}: 4 devices, 10 links\n"
    assert all(line.startswith("note: ") for line in err.splitlines())
    assert topo("import", given)[1] == written.read_text()
    assert topo("show", written, "gpu0", "gpu3")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show", "nowhere"), "nowhere: expected a topology file"),
        (("show", "p2.8xlarge", "gpu0"), "expected two devices, or none"),
        (("show", "p2.8xlarge", "gpu0", "gpu9"), r"p2\.8xlarge: expected a device \(gpu0, .*\), found 'gpu9'"),
        (("show", "p2.8xlarge", "gpu0", "gpu0"), "expected two different devices, found 'gpu0' twice"),
        (("import", "absent.xml"), r"absent\.xml: expected a readable file"),
        (("import", "FILE"), "expected --device"),
        (("import", "FILE", "--device", "abacus"), r"--device: expected a type of device .*'abacus'"),
        (("import", "FILE", "--device", "gk210", "-o", "FILE"), "cannot write to this file"),
        (("check",), "MACHINE"),
        (("draw",), "draw"),
    ],
)
def test_mistakes_are_one_line(topo, tmp_path, arguments, message):
    path = tmp_path / "matrix.txt"
    path.write_text(NVLINKS)
    status, out, err = topo(*(path if word == "FILE" else word for word in arguments))
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert re.search(message, err)


def test_machines_with_names_are_listed(topo):
    status, shown, _ = topo("list")
    assert status == 0
    assert all(name in shown for name in available())
