"""Tests of steps on devices that lower their clock to keep to a power limit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

import tensor_partitioner
from simulator.projection.kernels import within_limit_s
from simulator.projection.result import POWER, Projection
from topologies import TopologyError
from topologies.load import parse_topology
from topologies.reading import device_names, device_type
from topologies.schema import DeviceSpec, Power

H200 = device_type("h200-sxm5-141gb")
RUN = Path(__file__).parents[2] / "results" / "gpu" / "nvidia-h200-2026-11-28-evening" / "rates.json"
LIMITED = [kind for kind in map(device_type, device_names()) if kind.power is not None]

watts = st.floats(1.0, 2000.0)
powers = st.builds(
    lambda idle_w, *above_w: Power(
        **{name: idle_w + watt for name, watt in zip(("limit_w", "product_w", "memory_w"), above_w, strict=True)},
        idle_w=idle_w,
    ),
    *(watts,) * 4,
)
shares = st.floats(0.0, 1.0)


def by_grid(power: Power, seconds: float, product_s: float, memory_s: float) -> float:
    """Return the least, over shares of the clock, of what the step takes and what its joules last within the limit."""
    clock = np.linspace(1e-4, 1.0, 200_001)
    takes_s = seconds + product_s * (1 / clock - 1)
    joules = (power.product_w - power.idle_w) * product_s * clock**2 + (power.memory_w - power.idle_w) * memory_s
    return float(np.maximum(takes_s, joules / (power.limit_w - power.idle_w)).min())


@given(powers, shares, shares)
def test_the_clock_is_the_highest_within_the_limit(power: Power, product_s: float, memory_s: float) -> None:
    assert within_limit_s(power, 1.0, product_s, memory_s) == pytest.approx(
        by_grid(power, 1.0, product_s, memory_s), rel=1e-3
    )


@given(powers, st.tuples(shares, shares, shares), st.tuples(shares, shares, shares))
def test_lower_bounds_and_means_give_lower_bounds(
    power: Power, first: tuple[float, float, float], second: tuple[float, float, float]
) -> None:
    steps = [(1 + idle_s + product_s, product_s, memory_s) for idle_s, product_s, memory_s in (first, second)]
    least, mean, both_s = np.minimum(*steps), np.mean(steps, axis=0), [within_limit_s(power, *step) for step in steps]
    assert within_limit_s(power, *map(float, least)) <= min(both_s) * (1 + 1e-9)
    assert within_limit_s(power, *map(float, mean)) <= max(both_s) * (1 + 1e-9)


def test_products_alone_last_as_measured_on_an_h200() -> None:
    runs = json.loads(RUN.read_text())["sustained"]
    lasting = {run["data"]: run["flop_per_s"][len(run["flop_per_s"]) // 2 :] for run in runs if run["n"] == 8192}
    assert H200.attained_flop_per_s is not None
    slowed = within_limit_s(H200.power, 1.0, 1.0, 0.0)
    for data, dtype in (("normal", "bfloat16"), ("normal, float16", "float16"), ("normal, float8", "float8")):
        assert getattr(H200.attained_flop_per_s, dtype) / slowed == pytest.approx(np.median(lasting[data]), rel=0.05)


@pytest.mark.parametrize("kind", LIMITED, ids=lambda kind: kind.name)
def test_products_that_last_are_slowed_and_a_third_of_a_step_is_not(kind: DeviceSpec) -> None:
    power = kind.power
    assert within_limit_s(power, 1.0, 1.0, 0.0) > 1.02
    assert within_limit_s(power, 1.0, 0.33, 0.2) == 1.0
    assert within_limit_s(power, 1.0, 0.0, 1.0) == 1.0


def test_without_a_figure_of_power_nothing_is_slowed() -> None:
    assert within_limit_s(None, 1.0, 1.0, 1.0) == 1.0


TEXT = """
format: topology/2
name: capped
description: GPUs with another limit
devices:
  - {{name: gpu*2, type: {type}, power_limit_w: {limit}}}
links:
  - {{ends: [gpu0, gpu1], type: pcie5x16}}
"""


def test_a_lower_limit_slows_a_projected_step() -> None:
    def step(limit_w: float) -> Projection:
        machine = parse_topology(TEXT.format(type="h100-sxm5-80gb", limit=limit_w))
        options = {"sequence": 2048, "vocabulary": 32000, "dtype": "bfloat16"}
        return tensor_partitioner.project("llama-8-4096", options, batch=64, parallel="dp=2", machine=machine)

    free, usual, capped = step(5000.0), step(700.0), step(500.0)
    assert free.shares[POWER] == 0.0
    assert free.seconds < usual.seconds < capped.seconds
    for projection in (free, usual, capped):
        assert sum(projection.shares.values()) == pytest.approx(projection.seconds)
        assert projection.seconds - projection.shares[POWER] == pytest.approx(free.seconds)


@pytest.mark.parametrize(
    ("kind", "limit", "match"),
    [
        ("p100-sxm2-16gb", 200, r"power_limit_w: expected none, because p100-sxm2-16gb states no power, found 200"),
        ("h100-sxm5-80gb", 100, r"power.limit_w: expected more than 123, found 100"),
    ],
)
def test_limits_that_cannot_be(kind: str, limit: int, match: str) -> None:
    with pytest.raises(TopologyError, match=match):
        parse_topology(TEXT.format(type=kind, limit=limit))
