"""All systems by name."""

from __future__ import annotations

from results.wresnet_throughput.systems.placement import op_placement
from results.wresnet_throughput.systems.plans import data_parallel, pipeline, plan_system, recursive
from results.wresnet_throughput.systems.replicas import ideal, small_batch
from results.wresnet_throughput.systems.swapping import swapping
from results.wresnet_throughput.systems.system import System

SYSTEMS: dict[str, System] = {
    "ideal": System(ideal, batch_per_device=True),
    "small-batch": System(small_batch, batch_per_device=True),
    "swapping": System(swapping, batch_per_device=True),
    "op-placement": System(op_placement),
    "1f1b": plan_system(pipeline),
    "data-parallel": plan_system(data_parallel()),
    "zero-1": plan_system(data_parallel(1)),
    "zero-2": plan_system(data_parallel(2)),
    "zero-3": plan_system(data_parallel(3)),
    "tofu": plan_system(recursive("S")),
    "planned": plan_system(recursive("S,R")),
}
"""`README.md` explains each."""
