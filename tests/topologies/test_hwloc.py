"""hwloc's XML: a small machine worked out by hand, real ones where they are, and what is wrong with others."""

import pytest

from tests.launcher import in_one_line
from tests.topologies.samples import HWLOC, REAL, needs_real
from topologies import TopologyError
from topologies.imports import import_machine

EXTRA, V100 = "hwloc", "v100-sxm2-16gb"


def test_hwloc(imported):
    machine = imported(HWLOC).machine
    assert [device.spec.name for device in machine.devices] == ["p100-sxm2-16gb"] * 3
    link_types = {(*link.ends, link.type) for link in machine.links}
    assert link_types == {
        ("pcie0", "cpu0", "pcie3x16-uplink"),
        ("gpu0", "pcie0", "pcie3x16"),
        ("gpu1", "pcie0", "pcie3x8"),
        ("gpu2", "cpu1", "pcie3x16"),  # its port is no switch; the speed is left open
        ("cpu0", "cpu1", "upi-skylake"),
        ("gpu0", "gpu1", "nvlink-40000MBps"),
        ("gpu0", "cpu0", "nvlink-20000MBps"),
    }
    (nvlink,) = (link for link in machine.links if link.ends == ("gpu0", "gpu1"))
    assert nvlink.bandwidth_bytes_per_s == 40e9


ERRORS = {
    "hwloc without GPU": (HWLOC.replace("10de", "8086"), V100, "expected GPUs, found no PCIDev"),
    "hwloc's matrix": (HWLOC.replace("1000000 40000 ", "1000000 "), None, "expected 3 x 3 numbers, found 8"),
    "hwloc's speed": (HWLOC.replace('"7.876923"', '"fast"'), None, "pci_link_speed: expected .*, found 'fast'"),
}


@pytest.mark.parametrize(("text", "device", "message"), ERRORS.values(), ids=ERRORS)
def test_what_cannot_be_imported_is_one_line(imported, text, device, message):
    with in_one_line(TopologyError, message):
        imported(text, device)


def test_a_package_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("topologies.imports.entry_points", lambda group: ())
    (tmp_path / "machine.xml").write_text(HWLOC)
    with pytest.raises(TopologyError, match=r"found <topology>; to add formats, pip install extras/.*hwloc"):
        import_machine(tmp_path / "machine.xml")


@needs_real
@pytest.mark.usefixtures("imported")
def test_real_files():
    power8 = import_machine(REAL / "other" / "hwloc_power8gpudistances.xml").machine
    assert [device.spec.name for device in power8.devices] == ["p100-sxm2-16gb"] * 4
    assert {link.bandwidth_bytes_per_s for link in power8.links if link.type.startswith("nvlink")} == {40e9}
    assert power8.route(0, 1).nodes == ("gpu0", "gpu1")
    normal = import_machine(REAL / "other" / "hwloc_32em64t-2n8c2t-pci-normalio.xml", V100).machine
    assert len(normal.devices) == 4  # three of NVIDIA's, one of AMD's; the server's own graphics is none
