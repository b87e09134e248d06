"""A small report that tests vary."""

import pytest

from planner.report.schema import Report


@pytest.fixture
def report():
    return Report(
        source="simulator", machine="pair", hardware="2 x imaginary device", plan="plan.json", model="mlp-2-8",
        searcher="recursive", placements="S", workers=2, ways=(2,), planned_bytes=((0, 12), (4, 0)),
        bytes=((0, 12), (4, 0)), arena_bytes=(256, 320), steps=1, seconds_per_step=0.25,
        seconds_without_communication=0.125,
    )  # fmt: skip
