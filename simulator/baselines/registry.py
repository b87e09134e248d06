"""All systems by name; add to them to compare with one of your own."""

from __future__ import annotations

from simulator.baselines.pipeline import pipeline
from simulator.baselines.placement import op_placement
from simulator.baselines.plans import data_parallel, of_plan, recursive, zero
from simulator.baselines.replicas import ideal, small_batch
from simulator.baselines.swapping import swapping
from simulator.baselines.system import System

PLANS: dict[str, System] = {
    "data-parallel": of_plan(data_parallel),
    "zero-1": of_plan(zero(1)),
    "zero-2": of_plan(zero(2)),
    "zero-3": of_plan(zero(3)),
    "tofu": of_plan(recursive("S")),
    "planned": of_plan(recursive("S,R")),
}
"""The systems that are plans."""

SYSTEMS: dict[str, System] = {
    "ideal": ideal,
    "small-batch": small_batch,
    "swapping": swapping,
    "op-placement": op_placement,
    "1f1b": pipeline,
    **PLANS,
}
"""What `simulate --system` may be; `docs/explanation/systems.md` explains each."""

REPLICAS = ("ideal", "small-batch", "swapping")
"""The systems whose graph has the batch of one device."""
