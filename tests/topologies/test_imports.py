"""Imports of small descriptions worked out by hand, and of real ones where they are."""

from collections import Counter

import pytest

from tests.launcher import in_one_line
from tests.topologies.samples import (
    BRIDGES,
    MATRIX,
    NCCL,
    NO_PEERS,
    NVLINKS,
    PROVIDER,
    REAL,
    VIRTUAL,
    links,
    needs_real,
    physical_links,
)
from topologies import TopologyError, load_topology, parse_topology, traffic
from topologies.imports import import_machine

V100 = "v100-sxm2-16gb"


def test_nccl(imported):
    topology = imported(NCCL)
    machine = topology.machine
    assert [device.spec.name for device in machine.devices] == [V100] * 4  # by their PCI identity
    assert links(machine) == {
        ("pcie0", "cpu0"): ("pcie3x16-uplink", 1),
        ("gpu1", "pcie0"): ("pcie3x8", 1),
        ("gpu0", "pcie0"): ("pcie3x16", 1),  # left open in the file
        ("nic0", "pcie0"): ("pcie3x16-uplink", 1),
        ("gpu2", "cpu1"): ("pcie4x16", 1),
        ("gpu3", "cpu1"): ("pcie4x16", 1),
        ("cpu0", "cpu1"): ("upi-skylake", 1),
        ("gpu0", "gpu1"): ("nvlink2", 2),
        ("gpu2", "nvswitch0"): ("nvlink2-switch", 6),
        ("gpu3", "nvswitch0"): ("nvlink2-switch", 6),
    }
    (narrow,) = (link for link in machine.links if link.type == "pcie3x8")
    assert narrow.bandwidth_bytes_per_s == 6e9  # NCCL: 12e9 for sixteen lanes
    assert machine.route(0, 1).nodes == ("gpu0", "gpu1")
    assert machine.route(2, 3).nodes == ("gpu2", "nvswitch0", "gpu3")
    assert machine.route(0, 3).nodes == ("gpu0", "pcie0", "cpu0", "cpu1", "gpu3")
    assert any("generation 3, 16 lanes" in note for note in topology.notes)


def test_what_is_written_is_what_was_imported(imported):
    topology = imported(NCCL)
    again = parse_topology(topology.text)
    assert (again.links, again.devices, again.resources) == (
        topology.machine.links,
        topology.machine.devices,
        topology.machine.resources,
    )
    assert all(f"# {note}\n" in topology.text for note in topology.notes)


def test_a_providers_file_lists_neither_types_nor_nvlinks(imported):
    with pytest.raises(TopologyError, match=r"given: expected --device, because the type .* a100-sxm4-40gb"):
        imported(PROVIDER)
    topology = imported(PROVIDER, "a100-sxm4-40gb")
    assert physical_links(topology.machine) == {"pcie4x16": 2, "pcie4x16-uplink": 2}
    assert any("lists no NVLinks; a100-sxm4-40gb may have up to 12" in note for note in topology.notes)


def test_a_matrix(imported):
    machine = imported(MATRIX, "gtx-1080").machine
    assert links(machine) == {
        ("gpu0", "pcie0"): ("pcie3x16", 1),
        ("gpu1", "pcie0"): ("pcie3x16", 1),
        ("gpu2", "pcie1"): ("pcie3x16", 1),
        ("nic0", "pcie1"): ("pcie3x16-uplink", 1),
        ("pcie0", "pcie2"): ("pcie3x16-uplink", 1),
        ("pcie1", "pcie2"): ("pcie3x16-uplink", 1),
        ("gpu3", "bridge0"): ("pcie3x16", 1),
        ("gpu4", "bridge0"): ("pcie3x16", 1),
        ("pcie2", "cpu0"): ("pcie3x16-uplink", 1),
        ("bridge0", "cpu1"): ("pcie3x16-uplink", 1),
        ("cpu0", "cpu1"): ("upi-skylake", 1),
    }


def test_matrices_of_peer_access_may_follow(imported):
    peers = "\n \tGPU0\tGPU1\nGPU0\tX\tGNS\nGPU1\tGNS\tX\n"
    assert imported(MATRIX + peers, V100).text == imported(MATRIX, V100).text


def test_more_nvlinks_than_a_gpu_has_lead_to_a_switch(imported):
    switched = imported(NVLINKS, "a100-sxm4-80gb").machine
    assert {link.count for link in switched.links if link.type == "nvlink3-switch"} == {12}
    assert switched.route(0, 3).nodes == ("gpu0", "nvswitch0", "gpu3")
    meshed = imported(NVLINKS.replace("NV12", "NV4 "), "a100-sxm4-80gb").machine
    assert physical_links(meshed)["nvlink3"] == 6 * 4
    assert meshed.route(0, 3).nodes == ("gpu0", "gpu3")


def test_cards_in_pairs_on_bridges(imported):
    """A transfer within a pair takes the 12 links of its bridge, another the PCIe of these cards, generation 4."""
    topology = imported(BRIDGES, "a100-pcie-80gb")
    machine = topology.machine
    assert machine.route(0, 1).nodes == ("gpu0", "gpu1")
    assert machine.bandwidth_bytes_per_s(0, 1) == 12 * 20e9
    assert machine.route(0, 2).nodes == ("gpu0", "cpu0", "cpu1", "gpu2")
    assert {link.type for link in machine.links if "cpu0" in link.ends} == {"pcie4x16", "amd-infinity-fabric"}
    assert any("generation 4, 16 lanes" in note for note in topology.notes)
    with pytest.raises(TopologyError, match=r"with NVLinks to a switch, .* found a100-pcie-80gb"):
        imported(NVLINKS, "a100-pcie-80gb")


def test_devices_of_a_processor_that_are_sys_from_each_other(imported):
    """A virtual machine gives every GPU a PCIe root of its own; adapters belong to the nearest GPU's processor."""
    topology = imported(VIRTUAL, "h100-sxm5-80gb")
    assert links(topology.machine) == {
        **{(f"{name}{i}", f"pcie{i}"): ("pcie5x16" + end, 1) for i in (0, 1) for name, end in NEAR.items()},
        **{(node, "cpu0"): ("pcie5x16-uplink", 1) for node in ("pcie0", "pcie1", "nic2")},
        ("gpu0", "gpu1"): ("nvlink4", 18),
    }
    assert any("SYS from each other" in note for note in topology.notes)


NEAR = {"gpu": "", "nic": "-uplink"}


def test_devices_without_peer_access_meet_in_host_memory(imported):
    """Of two GPUs behind one uplink each has half of it; every byte is written to memory and read again."""
    topology = imported(NO_PEERS, "rtx-4090")
    machine = topology.machine
    assert machine.route(0, 1).nodes == ("gpu0", "cpu0", "gpu1")
    assert machine.bandwidth_bytes_per_s(0, 1) == 12e9
    assert machine.route(0, 2).nodes == ("gpu0", "cpu0", "cpu1", "gpu2")
    uses = {machine.resources[resource].name: amount for resource, amount in machine.route(0, 2).uses}
    assert (uses["dram0"], uses["dram1"]) == (2.0, 2.0)
    assert parse_topology(topology.text).resources == machine.resources
    assert any("without peer access" in note for note in topology.notes)


def test_a_box_of_4090s_is_the_packages_in_every_form(imported):
    """Eight on two processors, as NCCL's XML, a matrix and a line: an all-reduce takes as long."""
    gpu = '<pci busid="{0:02x}" class="0x030000" link_speed="16 GT/s" link_width="16"><gpu dev="{0}"/></pci>'
    cpu = '<cpu numaid="{}" arch="x86_64" vendor="AuthenticAMD" familyid="25" modelid="1">{}</cpu>'
    halves = [cpu.format(half, "".join(map(gpu.format, range(4 * half, 4 * half + 4)))) for half in (0, 1)]
    names = [f"GPU{i}" for i in range(8)]
    rows = [[name, *("X" if i == j else "NODE" if i // 4 == j // 4 else "SYS" for j in range(8)), f"{i // 4}"]
            for i, name in enumerate(names)]  # fmt: skip
    matrix = "\n".join(map(" ".join, ([*names, "NUMA"], *rows)))
    machines = [
        load_topology("pcie-8x-rtx4090"),
        imported(f"<system>{''.join(halves)}</system>", "rtx-4090").machine,
        imported(matrix, "rtx-4090").machine,
        load_topology("8 x rtx-4090"),
    ]
    seconds = [
        traffic.fastest(traffic.choices(machine, "all-reduce", tuple(range(8))), 1e8).alone.seconds(1e8)
        for machine in machines
    ]
    assert seconds == pytest.approx([seconds[0]] * 4, rel=1e-9)


CASES = REAL.parent / "cases"


@pytest.mark.skipif(not CASES.is_dir(), reason="../shared/cases is not here")
def test_reported_matrices():
    bridged = import_machine(CASES / "a100_bridges_topo.txt", "a100-pcie-40gb").machine
    assert physical_links(bridged)["nvlink3"] == 4 * 12
    choices = traffic.choices(bridged, "all-reduce", tuple(range(8)))
    bus_bandwidth = 1e8 * 2 * 7 / 8 / traffic.fastest(choices, 1e8).alone.seconds(1e8)
    assert bus_bandwidth == pytest.approx(20e9, rel=0.25)  # reported: 20e9
    hgx = import_machine(CASES / "hgx_sys.txt", "h100").machine
    assert physical_links(hgx)["nvlink4-switch"] == 8 * 18
    assert sum(name.startswith("cpu") for name in hgx.switches) == 2


ROW = "GPU1    NV12     X      NV12    NV12    0-31\n"
BOMB = '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;">]><system>&b;</system>'
ERRORS = {
    "near a type": (
        NVLINKS,
        "rtx4090",
        "--device: expected a type of device, found 'rtx4090': did you mean rtx-4090, ",
    ),
    "lstopo's text": ("Machine (126GB total)\n  Package L#0\n", V100, "expected hwloc's XML, .* lstopo --of xml --io"),
    "empty": ("", None, "expected a header GPU0"),
    "other text": ("hello\nworld\n", None, "expected a header GPU0"),
    "a row missing": (NVLINKS.replace(ROW, ""), V100, "expected a row for GPU1, found none"),
    "a row cut": (NVLINKS.replace(ROW, "GPU1 NV12 X\n"), V100, "GPU1: expected 4 entries, found 2"),
    "a diagonal": (NVLINKS.replace("GPU0     X ", "GPU0   PIX "), V100, "GPU0, GPU0: expected X, found 'PIX'"),
    "a word": (
        NVLINKS.replace("GPU0     X      NV12", "GPU0     X      NVX"),
        V100,
        "GPU0, GPU1: expected PIX, .*'NVX'",
    ),
    "two ways": (MATRIX.replace("GPU1    PIX", "GPU1    PXB"), V100, "GPU1, GPU0: expected the same both ways"),
    "no tree": (
        "GPU0 GPU1 GPU2\nGPU0 X PIX SYS\nGPU1 PIX X PIX\nGPU2 SYS PIX X\n",
        V100,
        "GPU0, GPU2: expected closer, .* found SYS",
    ),
    "nvlinks of none": (NVLINKS, "gtx-1080", "expected a --device with NVLinks or xGMI, .* found gtx-1080"),
    "unknown device": (NVLINKS, "x1", r"--device: expected a type of device \(a100.*\), found 'x1'"),
    "not XML": ("<system>", None, "expected XML, found no element found|expected XML, found"),
    "other XML": ("<platform/>", None, "found <platform>; .* extras/nccl"),
    "entities": (BOMB, None, "expected XML without entities of its own, found <!ENTITY"),
    "deep": ("<system>" + "<pci>" * 5000 + "</pci>" * 5000 + "</system>", None, "at most 100 elements deep"),
    "no GPU": ("<system><cpu><pci busid='1'/></cpu></system>", V100, "expected GPUs, found no <gpu>"),
    "no processor": ("<system><pci busid='1' class='0x030200'/></system>", V100, "expected <cpu> elements"),
    "GPU elsewhere": (
        "<system><cpu/><pci busid='1' class='0x030200'/></system>",
        V100,
        "expected every GPU in the <pci> elements of a <cpu>",
    ),
    "one bus twice": (NCCL.replace("0000:12:00.0", "0000:11:00.0"), None, "busid: expected a new one"),
    "count": (NCCL.replace('count="6"', 'count="many"'), None, "<nvlink> count: expected an integer .*'many'"),
    "unequal counts": (NCCL.replace('count="2"', 'count="1"', 1), None, "count: expected the same both ways"),
    "width": (NCCL.replace('link_width="8"', 'link_width="-8"'), None, "link_width: expected an integer .*'-8'"),
}


@pytest.mark.parametrize(("text", "device", "message"), ERRORS.values(), ids=ERRORS)
def test_what_cannot_be_imported_is_one_line(imported, text, device, message):
    with in_one_line(TopologyError, message):
        imported(text, device)


GPUS_AND_NVLINKS = {
    "4A100_2CX6": (4, {"nvlink3-switch": 48}),
    "8A100_4CX6": (8, {"nvlink3-switch": 96}),
    "aws_p4d.": (8, {}),
    "aws_p4de": (8, {}),
    "azure_ncv4": (4, {}),
    "azure_ndv2": (8, {}),
    "azure_ndv4": (8, {}),
    "azure_ndv5": (8, {}),
    "dgx1_v100_8gpu_1ib": (8, {"nvlink2": 24}),
    "dgx1_v100_8gpu_2ib": (8, {"nvlink2": 24}),
    "pcie_8x_gtx1080": (8, {}),
    "pcie_8x_titanx": (8, {}),
}
"""Counted in the files: of NVLinks between two GPUs both ends are listed, 48 of the DGX-1's 24."""


@needs_real
def test_there_are_fourteen_real_nccl_files():
    assert len(list((REAL / "nccl_xml").glob("*.xml"))) == len(GPUS_AND_NVLINKS) + 2


@needs_real
@pytest.mark.parametrize("name", GPUS_AND_NVLINKS)
def test_real_nccl_files(name):
    (path,) = (REAL / "nccl_xml").glob(f"{name}*")
    known = "A100" in name or "dgx1" in name  # by the PCI identity in the file
    machine = import_machine(path, None if known else V100).machine
    nvlinks = {kind: count for kind, count in physical_links(machine).items() if kind.startswith("nvlink")}
    assert (len(machine.devices), nvlinks) == GPUS_AND_NVLINKS[name]


@needs_real
@pytest.mark.parametrize("name", ["aws_g5", "aws_p5"])
def test_real_nccl_files_without_gpus(name):
    (path,) = (REAL / "nccl_xml").glob(f"{name}*")
    with pytest.raises(TopologyError, match="expected GPUs, found no <gpu>"):
        import_machine(path, V100)


@needs_real
def test_the_real_dgx_1_is_the_packages(tmp_path):
    """Two descriptions of one mesh, however its GPUs are numbered: as many pairs of each kind."""
    machine = import_machine(next((REAL / "nccl_xml").glob("dgx1*1ib*"))).machine
    pairs = Counter(link.count for link in machine.links if link.type == "nvlink2")
    assert pairs == {1: 8, 2: 8}
    matrix = import_machine(next((REAL / "smi_topo").glob("dgx1*")), V100).machine
    assert Counter(link.count for link in matrix.links if link.type == "nvlink2") == pairs


@needs_real
@pytest.mark.parametrize(
    ("name", "gpus"), [("6gpu", 6), ("8gpu_PIX", 8), ("8gpu_pcie", 8), ("dgx1", 8), ("dgx2", None), ("dgxA100", None)]
)
def test_real_matrices(name, gpus):
    (path,) = (REAL / "smi_topo").glob(f"{name}*")
    if gpus is None:  # only parts of these were readable
        with pytest.raises(TopologyError, match="expected"):
            import_machine(path, V100)
    else:
        assert len(import_machine(path, V100).machine.devices) == gpus
