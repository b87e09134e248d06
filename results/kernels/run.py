"""Kernels and training steps of one rank beside PyTorch's, with one thread: CPU time, in turns."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from results.experiment import Pages, in_process, machine, publish, table
from results.kernels.timing import Pairs, in_turns, summary

HERE = Path(__file__).parent
MEASURE = "results.kernels.measure"
GOALS = {
    "cnn-5-64": 1.3,
    "transformer-12-768": 1.1,
    "wresnet-50-1": 1.0,
    "wresnet-14-2": 1.0,
    "mlp-4-2048": 1.0,
    "rnn-2-512": 1.0,
}
KERNEL_GOALS = {"sgd with momentum": 1.5, "gelu": 3.0}
INSTRUCTIONS = {"widest": "what either side chooses", "avx2": "AVX2 on both sides"}
PROCESSES = 3
"""Of either side, one pair after the other: single processes differ by some percent, from their start to their end."""

PAIRS = {"wresnet-50-1": 1, "transformer-12-768": 2}
MODEL_PAIRS, KERNEL_PAIRS = 7, 15
"""In a pair of processes; of the models named above so many."""


def measured(instructions: str, *what: str, pairs: int) -> list[dict[str, Any]]:
    """Return what was found of each case, in all processes together."""
    times: dict[str, Pairs] = {}
    for _ in range(PROCESSES):
        for name, milliseconds in in_turns(MEASURE, instructions, *what, pairs=pairs):
            times.setdefault(name, []).extend(milliseconds)
    return [summary(*case) for case in times.items()]


def model(name: str, instructions: str) -> dict[str, Any]:
    """Return a model's step beside PyTorch's."""
    (times,) = measured(instructions, "model", name, pairs=PAIRS.get(name, MODEL_PAIRS))
    row = {"instructions": instructions, **times}
    print(row, file=sys.stderr, flush=True)
    return row


def pages(data: Any) -> Pages:
    """Return the README's tables."""
    chosen = data["versions"]
    return {
        "machine": f"Measured on: {data['machine']}; PyTorch {chosen['pytorch']}, NumPy {chosen['numpy']} with "
        f"{chosen['blas']}; load average {data['load']:.1f} when it began.",
        "models": table(
            ["model", *(f"{what}: ours, PyTorch (ms)" for what in INSTRUCTIONS.values()), "ratios", "turns", "wanted"],
            (_model_row(name, data["models"]) for name in GOALS),
        ),
        "kernels": table(
            ["kernel", "ours (ms)", "PyTorch (ms)", "ratio", "turns", "wanted"],
            map(_kernel_row, data["kernels"]),
        ),
    }


def _model_row(name: str, rows: list[dict[str, Any]]) -> list[str]:
    of_model = [
        next((row for row in rows if (row["case"], row["instructions"]) == (name, key)), None) for key in INSTRUCTIONS
    ]

    def each(show: Callable[[dict[str, Any]], str]) -> list[str]:
        return ["not measured" if row is None else show(row) for row in of_model]

    times = each(lambda row: f"{row['ours_ms']:.0f}, {row['pytorch_ms']:.0f}")
    ratios = ", ".join(each(lambda row: f"{row['ratio']:.2f}"))
    return [f"`{name}`", *times, ratios, ", ".join(each(lambda row: str(row["turns"]))), f"at most {GOALS[name]:g}"]


def _kernel_row(row: dict[str, Any]) -> list[Any]:
    figures = (f"{row[name]:.2f}" for name in ("ours_ms", "pytorch_ms", "ratio"))
    goal = KERNEL_GOALS.get(row["case"])
    return [row["case"], *figures, row["turns"], "" if goal is None else f"at most {goal:g}"]


if __name__ == "__main__":
    data = {
        "machine": machine(),
        "load": os.getloadavg()[0],
        "versions": in_process(MEASURE, "versions"),
        "models": [model(name, instructions) for instructions in INSTRUCTIONS for name in GOALS],
        "kernels": measured("widest", "kernels", pairs=KERNEL_PAIRS),
    }
    publish(HERE, data, pages)
