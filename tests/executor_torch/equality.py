"""Modules trained by plans on ranks of torchrun: torchrun --nproc-per-node K -m tests.executor_torch.equality PLAN...

A plan's file is named EXAMPLE-KIND.json. Rank 0 prints, as JSON, of every plan: the
bytes planned and those sent in each step, how far losses and the state dict are from eager's after `STEPS` steps, but
for buffers that the graph does not update (stale), and which weights DTensor puts together to the same, or why it does
not take them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from threadpoolctl import threadpool_limits

from executor.check import relative_difference
from executor.torch import Distributed, distribute
from executor.torch.distributed import held_entries, sharded_state
from planner.errors import PlanError
from planner.plans.plan_json import load_plan
from tests.executor_torch.cases import user_model
from tests.pytorch.eager import STEPS, eager_steps


def sharded(trained: Distributed, whole: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Say which entries are the same once DTensor has put them together, and which it does not take."""
    equal, different, refused = 0, list[str](), dict[str, str]()
    for name in held_entries(trained.trainer):
        try:
            (dtensor,) = sharded_state(trained.trainer, [name]).values()
        except PlanError as error:
            refused[name] = str(error)
            continue
        full = dtensor.full_tensor()
        if dist.get_rank() == 0 and not torch.equal(full, whole[name]):
            different.append(name)
        equal += 1
    return {"equal": equal - len(different), "different": different, "refused": refused}


def trained(path: Path) -> dict[str, Any]:
    """Train one plan's module; return, on rank 0, what came of it."""
    plan, given = load_plan(path), user_model(path.stem.rpartition("-")[0])
    ours = distribute(given.module, plan)
    losses, rows = list[float](), list[list[int]]()
    for _ in range(STEPS):
        losses.append(float(ours.step(given.inputs, given.targets)))
        rows.append(ours.sent_bytes.tolist())
    state = ours.state_dict()
    tensors = sharded(ours, state)
    sent = ours.trainer.cluster.gather(rows)
    if dist.get_rank() != 0:
        return {}
    expected_losses, expected = eager_steps(given.module, given.inputs, given.loss, given.targets)
    kept = {entry.tensor for entry in plan.graph.entries.values()} - plan.graph.updates.keys() - {None}
    stale = [name for name, _ in given.module.named_buffers() if plan.graph.entries[name].tensor in kept]
    return {
        "plan": path.stem,
        "planned": plan.bytes.tolist(),
        "sent": [[row[step] for row in sent] for step in range(STEPS)],
        "losses": max(abs(a - b) / abs(b) for a, b in zip(losses, expected_losses, strict=True)),
        "state": max(
            relative_difference(state[name].numpy(), value) for name, value in expected.items() if name not in stale
        ),
        "stale": stale,
        "missing": sorted(expected.keys() - state.keys()),
        "sharded": tensors,
    }


def main() -> None:
    """Train every plan's module."""
    dist.init_process_group("gloo")
    with threadpool_limits(1):
        outcomes = [trained(Path(path)) for path in sys.argv[1:]]
    if dist.get_rank() == 0:
        print(json.dumps(outcomes))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
