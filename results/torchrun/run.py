"""Plans on ranks of torchrun: whether they send what was planned and train as eager does, and what a step takes.

    python -m results torchrun
    python -m results.torchrun.run PART...

writes data.json and the tables in README.md, both beside this file; of parts (speed, or a number of ranks) those alone.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from results.experiment import Pages, filled, in_process, machine, publish, read_data, table
from results.torchrun.ranks import STEPS, TIMED, WAYS, on_ranks

HERE = Path(__file__).parent
ROUNDS = 15
SPEED = "speed"
PARTS = (SPEED, *map(str, WAYS))


def measured(part: str, rounds: int) -> Any:
    """Time the steps, or train all plans on so many ranks."""
    with tempfile.TemporaryDirectory() as folder:
        plans = in_process("results.torchrun.planned", folder, part)
        if part == SPEED:
            about = {"machine": machine(), "load": os.getloadavg()[0], "rounds": rounds}
            return about | {"models": on_ranks(TIMED, "results.torchrun.speed", rounds, *plans)}
        return on_ranks(int(part), "results.torchrun.equality", *plans)


def data(parts: Sequence[str] = (), rounds: int = ROUNDS) -> dict[str, Any]:
    """Measure these parts, by default all; what is on file stays of the others."""
    before: dict[str, Any] = read_data(HERE) if parts else {}
    return before | {"torch": version("torch")} | {part: measured(part, rounds) for part in parts or PARTS}


def speed_table(speed: dict[str, Any]) -> str:
    """Render seconds per step."""
    rows = []
    for name, one in speed.items():
        seconds = one["seconds"]
        ratios = [f"{seconds['ours'] / seconds[other]:.2f}" for other in ("DTensor", "DDP")]
        moved = f"{one['sent']:,}" + ("" if one["sent"] == one["planned"] else f", planned {one['planned']:,}")
        rows.append([f"`{name}`", *(f"{1e3 * value:.0f}" for value in seconds.values()), *ratios, moved])
    return table(["model", "ours (ms)", "DTensor (ms)", "DDP (ms)", "of DTensor's", "of DDP's", "our bytes"], rows)


def trained_table(trained: dict[str, Any]) -> str:
    """Render what came of every module: of its plan that was searched, and of the one that was not."""
    rows = []
    for ranks, found in trained.items():
        for searched, drawn in zip(found[::2], found[1::2], strict=True):
            pair = (searched, drawn)
            sent = ["as planned" if all(step == one["planned"] for step in one["sent"]) else "other" for one in pair]
            moved = [f"{sum(map(sum, one['planned'])):,} {said}" for one, said in zip(pair, sent, strict=True)]
            worst = max(max(one["losses"], one["state"]) for one in pair)
            whole = [sum(one["sharded"]["equal"] for one in pair), sum(map(different, pair)), sum(map(refused, pair))]
            rows.append([f"`{searched['plan'].rpartition('-')[0]}`", ranks, *moved, f"{worst:.0e}", *map(str, whole)])
    columns = ["module", "ranks", "bytes, searched", "bytes, drawn", "apart", "whole", "wrong", "refused"]
    return table(columns, rows)


def different(one: dict[str, Any]) -> int:
    """Count the entries that DTensor puts together wrongly."""
    return len(one["sharded"]["different"])


def refused(one: dict[str, Any]) -> int:
    """Count the entries that DTensor does not take."""
    return len(one["sharded"]["refused"])


def verdict(trained: dict[str, Any]) -> str:
    """Say how many plans moved what was planned, and how far the worst is from eager."""
    every = [one for found in trained.values() for one in found]
    equal = sum(all(step == one["planned"] for step in one["sent"]) for one in every)
    worst = max(max(one["losses"], one["state"]) for one in every)
    stale = sorted({one["plan"].rpartition("-")[0] for one in every if one["stale"]})
    aside = f" Buffers that the graph does not update are aside: of {', '.join(stale)}." if stale else ""
    return (
        f"Of {len(every)} plans, each run {STEPS} steps, {equal} sent the bytes planned between every pair of ranks in "
        f"every step; no loss and no entry of a state dict is further from eager's than {worst:.0e}.{aside}"
    )


def pages(found: Any) -> Pages:
    """Return the README with its tables."""
    timed, trained = found[SPEED], {ranks: found[ranks] for ranks in PARTS if ranks != SPEED}
    readme = filled(
        HERE / "README.md",
        machine=(
            f"Measured on: {timed['machine']}; PyTorch {found['torch']}; load average {timed['load']:.1f} when the "
            f"steps began, of which each is the median of {timed['rounds']}."
        ),
        speed=speed_table(timed["models"]),
        verdict=verdict(trained),
        trained=trained_table(trained),
    )
    return {"README.md": readme}


def main() -> None:
    """Measure, and write the data and the README's tables."""
    publish(HERE, data(sys.argv[1:]), pages)


if __name__ == "__main__":
    main()
