"""What products are computed in is said with every peak, and what half precision would be tried by."""

import pytest

from tensor_partitioner.commands.decide import main
from tensor_partitioner.commands.simulate import main as simulate
from tensor_partitioner.decision import decide
from tensor_partitioner.decision.sources import hint
from tensor_partitioner.page import decision_content
from tensor_partitioner.page.decisions import cards_of
from tests.project.test_plan_command import run
from topologies import load_topology

TINY = {"heads": 4, "sequence": 32, "vocabulary": 256}
ASKED = [str(word) for name, value in TINY.items() for word in (f"--{name}", value)]


@pytest.mark.parametrize(
    ("machine", "told"), [("dgx-a100", "--dtype mixed tries"), ("dgx-1-v100", "mixed-float16 tries")]
)
def test_single_precision_is_told_what_half_is_tried_by(machine, told, capsys):
    given = ("transformer-2-64", "--topo", machine, "--batch", "16", *ASKED)
    for command, rest in ((main, ("--pin", "tp=1")), (simulate, ("--parallel", "dp=8"))):
        assert run(command, *given, *rest, "--dtype", "float32") == 0
        shown = capsys.readouterr().out
        assert told in shown
        assert "MFU (float32)" in shown
        assert run(command, *given, *rest) == 0
        shown = capsys.readouterr().out
        assert "tries" not in shown
        assert "float16)" in shown


def test_a_device_without_faster_halves_is_told_nothing():
    device = load_topology("p2.8xlarge").devices[0]
    assert not hint("float32", device)
    assert not hint("float64", load_topology("dgx-a100").devices[0])


def test_a_page_says_of_which_peak():
    decision = decide("transformer-2-64", "dgx-a100", batch=16, pins=["tp=1"], dtype="float32", **TINY)
    assert "in float32" in decision.verdict
    lead = decision_content(decision).lead
    assert lead.startswith(decision.verdict)
    assert lead.endswith(hint("float32", load_topology("dgx-a100").devices[0]))
    assert any("float32 peak" in meaning for *_, meaning in cards_of(decision))
