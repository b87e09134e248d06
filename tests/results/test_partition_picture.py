"""The picture of WResNet-152-10 is of the plan that is found now, and shows what its README says."""

from __future__ import annotations

import pytest

from results.experiment import read_data
from results.partition_picture import wresnet_plan
from results.partition_picture.run import HERE


def test_the_drawn_plan():
    written = read_data(HERE)
    plan = wresnet_plan.plan()
    blocks = wresnet_plan.blocks(wresnet_plan.convolutions(plan))
    assert (plan.total_bytes, blocks) == (written["bytes"], written["blocks"])
    assert [block["blocks"] for block in blocks] == [1, 1, 2, 1, 7, 1, 35, 1, 2]
    kept = [{choice for conv in block["convolutions"].values() for choice in conv["x"]} for block in blocks]
    assert kept[:3] == [{"S0"}] * 3
    assert kept[6:] == [{"S1"}] * 3
    moved = wresnet_plan.moved(plan)
    assert moved == written["gigabytes"]
    assert sum(sum(stage.values()) for stage in moved.values()) == pytest.approx(plan.total_bytes / 1e9)
    assert moved["stage1"]["weights"] > moved["stage1"]["activations"]
    assert moved["stage3"]["weights"] < moved["stage3"]["activations"]
