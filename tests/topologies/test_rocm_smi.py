"""What rocm-smi prints: links of every weight, processors, and tables that are cut."""

import pytest

from tests.topologies.samples import links, physical_links, rocm
from topologies import TopologyError, load_topology

EXTRA = "rocm_smi"


def test_rocm_smi(imported):
    """Eight MI300X with links of equal weight are the packaged platform; of unequal weights, the least are direct."""
    every = [(a, b) for a in range(8) for b in range(a + 1, 8)]
    machine = imported(rocm(8, dict.fromkeys(every, 15)), "mi300x").machine
    assert physical_links(machine)["xgmi-mi300x"] == physical_links(load_topology("mi300x-platform"))["xgmi-mi300x"]
    ring = imported(rocm(4, {(0, 1): 15, (1, 2): 15, (2, 3): 15, (0, 3): 15, (0, 2): 30, (1, 3): 30}), "mi300x").machine
    assert {ends for ends, (kind, _) in links(ring).items() if kind == "xgmi-mi300x"} == {
        ("gpu0", "gpu1"),
        ("gpu1", "gpu2"),
        ("gpu2", "gpu3"),
        ("gpu0", "gpu3"),
    }
    on_pcie = imported(rocm(4, {}), "mi100").machine
    assert on_pcie.route(0, 1).nodes == ("gpu0", "cpu0", "gpu1")
    assert on_pcie.route(0, 2).nodes == ("gpu0", "cpu0", "cpu1", "gpu2")


def test_what_cannot_be_imported(imported):
    with pytest.raises(TopologyError, match="GPU1: expected 4 link types and weights"):
        imported(rocm(4, {}).replace("GPU1   40", "GPU1"), "mi100")
    with pytest.raises(TopologyError, match=r"with NVLinks or xGMI, .* found mi100"):
        imported(rocm(2, {(0, 1): 15}), "mi100")
