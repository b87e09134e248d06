"""What the transports cost, and whether they do the same to the bit.

    python -m results.transports.run [PART...]

writes data.json and the tables in README.md, both beside this file. Parts: cpu and perceptron, which take time; equal,
which does not mind what else runs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from planner.models import build
from planner.search import SearchOptions, search
from results.experiment import Pages, filled, machine, publish, read_data, table
from results.transports.cells import CELLS, RUNS, STEPS, compared, differences, on_ranks

HERE = Path(__file__).parent
DEMO = ("wresnet-14-2", {"batch": 64, "image": 8, "channels": 1, "classes": 10})
RANKS = {8: (2, 2, 2), 16: (2, 2, 2, 2)}
CPU_STEPS = 9
PERCEPTRON = ("mlp-4-2048", {"batch": 512})
ROUNDS = 15


def planned(model: tuple[str, dict[str, int]], ways: tuple[int, ...], placements: str, folder: Path) -> Path:
    """Search for a plan and write it."""
    path = folder / f"{model[0]}-{len(ways)}.json"
    search(build(model[0], **model[1]), SearchOptions(ways, "recursive", placements)).save(path)
    return path


def cpu(folder: Path) -> dict[str, Any]:
    """Measure CPU seconds of every transport."""
    plans = {ranks: planned(DEMO, ways, "S", folder) for ranks, ways in RANKS.items()}
    return {str(ranks): on_ranks(ranks, "results.transports.cpu", plan, CPU_STEPS) for ranks, plan in plans.items()}


def perceptron(folder: Path) -> Any:
    """Measure the perceptron's steps."""
    return on_ranks(2, "results.transports.mlp", planned(PERCEPTRON, (2,), "S,R", folder), ROUNDS)


def equal(folder: Path) -> dict[str, Any]:
    """Run every cell in every way."""
    found = compared(CELLS, folder)
    return {"cells": len(found), "different": {one["plan"]: differences(one) for one in found if differences(one)}}


PARTS: dict[str, Callable[[Path], Any]] = {"cpu": cpu, "perceptron": perceptron, "equal": equal}


def data(parts: Sequence[str]) -> dict[str, Any]:
    """Measure these parts; what is on file stays of the others, and the machine named is that of the last timing."""
    before: dict[str, Any] = read_data(HERE)
    with tempfile.TemporaryDirectory() as name:
        measured = {part: PARTS[part](Path(name)) for part in parts}
    timed = {"cpu", "perceptron"} & measured.keys()
    return before | measured | ({"machine": machine()} if timed else {})


def cpu_table(cpu: dict[str, Any]) -> str:
    """Render CPU seconds."""
    columns = [
        "ranks",
        "transport",
        "kernels",
        "moving",
        "waiting",
        "all",
        "outside kernels",
        "of p2p's",
        "waiting, of all",
    ]

    def cells(ranks: str, name: str) -> list[str]:
        one, other = cpu[ranks][name], cpu[ranks]["p2p"]
        milliseconds = [f"{1e3 * one[kind]:.0f}" for kind in ("kernels", "moving", "waiting", "total")]
        outside, of_other = one["total"] - one["kernels"], other["total"] - other["kernels"]
        shares = [f"{1e3 * outside:.0f}", f"{outside / of_other:.0%}", f"{one['waiting'] / one['total']:.0%}"]
        return [ranks, name, *milliseconds, *shares]

    return table(columns, [cells(ranks, name) for ranks in cpu for name in cpu[ranks]])


def perceptron_table(seconds: dict[str, float]) -> str:
    """Render the perceptron's steps."""
    ours = seconds["executed"]
    rows = [[name, f"{1e3 * one:.0f}", f"{ours / one:.2f}"] for name, one in seconds.items()]
    return table(["step", "ms", "executed, of it"], rows)


def verdict(found: dict[str, Any]) -> str:
    """Say how many cells are equal in all."""
    named = "; ".join(f"{plan}: {', '.join(what)}" for plan, what in found["different"].items())
    alike = found["cells"] - len(found["different"])
    return (
        f"Of {found['cells']} plans, each run {STEPS} steps in each of {len(RUNS)} ways, {alike} have equal "
        f"results, bytes and arenas in all of them{f'; not so {named}' if named else ''}."
    )


def pages(found: Any) -> Pages:
    """Return the README with its tables."""
    readme = filled(
        HERE / "README.md",
        machine=f"Measured on: {found['machine']}.",
        cpu=cpu_table(found["cpu"]),
        perceptron=perceptron_table(found["perceptron"]),
        equal=verdict(found["equal"]),
    )
    return {"README.md": readme}


def main(arguments: Sequence[str]) -> None:
    """Measure, and write the data and the README's tables."""
    parser = argparse.ArgumentParser(prog="results.transports")
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="what to measure; all without it")
    publish(HERE, data(parser.parse_args(arguments).parts or [*PARTS]), pages)


if __name__ == "__main__":
    main(sys.argv[1:])
