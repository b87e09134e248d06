"""Training on data of which a part is held out: digits with 1, 2 and 8 workers, and characters of text."""

from __future__ import annotations

import math
import resource
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import planner
from planner.report.schema import read_reports
from results.experiment import Pages, machine, mpirun, publish, table
from results.learning import picture

HERE = Path(__file__).parent
NEEDED_ACCURACY, NEEDED_BITS = 0.97, 2.2


@dataclass(frozen=True, slots=True)
class Case:
    """What is learned: a model with its options, for so many steps, and how often it is scored."""

    model: str
    options: dict[str, Any]
    data: str
    steps: int
    schedule: str
    every: int
    workers: tuple[int, ...]


CASES = {
    "digits": Case(
        "cnn-3-16",
        {
            "batch": 64,
            "image": 8,
            "channels": 1,
            "classes": 10,
            "batch_norm": True,
            "running_statistics": True,
            "lr": 0.1,
            "dtype": "float64",
        },
        "digits",
        300,
        "warmup=20,cosine=280",
        25,
        (1, 2, 8),
    ),
    "text": Case(
        "transformer-2-128",
        {
            "batch": 16,
            "sequence": 64,
            "vocabulary": 128,
            "heads": 4,
            "qkv_bias": False,
            "optimizer": "adam",
            "lr": 0.002,
        },
        "text",
        2500,
        "warmup=100,cosine=2400",
        500,
        (2,),
    ),
}


def learned(case: Case, workers: int) -> dict[str, Any]:
    """Train a case on so many workers; return its losses, its scores on held-out data and all processes' CPU time."""
    plan = planner.plan(planner.model(case.model, **case.options), workers=workers)
    with TemporaryDirectory() as folder:
        path, written = Path(folder) / "plan.json", Path(folder) / "report.json"
        plan.save(path)
        words = [str(path), "--data", case.data, "--steps", str(case.steps), "--schedule", case.schedule]
        words += ["--eval-every", str(case.every), "--json", str(written), "--threads", "1", "--backend", "numpy"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(mpirun(workers, "execute", *words), check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        (report,) = read_reports(written)
    return {
        "workers": workers,
        "bytes_per_step": report.total_bytes,
        "losses": report.losses,
        "evaluations": [
            [score.step, score.loss if score.accuracy is None else score.accuracy] for score in report.evaluations
        ],
        "cpu_s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
    }


def measured_data() -> dict[str, Any]:
    """Learn every case."""
    rows = {name: [learned(case, workers) for workers in case.workers] for name, case in CASES.items()}
    return {"machine": machine(), "rows": rows}


def furthest(first: dict[str, Any], second: dict[str, Any]) -> float:
    """Return how far two curves of losses are apart at most, relative to the second."""
    return max(float(abs(a - b) / b) for a, b in zip(first["losses"], second["losses"], strict=True))


def cells(name: str, rows: list[dict[str, Any]]) -> Iterator[list[str]]:
    """Yield a line of the table for every number of workers."""
    for row in rows:
        (step, last), case = row["evaluations"][-1], CASES[name]
        if name == "digits":
            at = next((step for step, share in row["evaluations"] if share >= NEEDED_ACCURACY), None)
            score, reached = f"{last:.1%} right", f"97% after {at} steps"
        else:
            bits = {step: loss / math.log(2) for step, loss in row["evaluations"]}
            at = next((step for step, loss in bits.items() if loss < NEEDED_BITS), None)
            score, reached = f"{bits[step]:.3f} bits a character", f"below {NEEDED_BITS} after {at} steps"
        apart = "" if row is rows[0] else f"{furthest(row, rows[0]):.1e}"
        yield [name, case.model, str(row["workers"]), str(step), score, reached, apart, f"{row['cpu_s'] / 60:.1f} min"]


def summary(data: Any) -> str:
    """Say what was reached, by whom and in what time."""
    said = []
    for name, rows in data["rows"].items():
        workers = ", ".join(str(row["workers"]) for row in rows)
        scores = sorted({cell[4] for cell in cells(name, rows)})
        minutes = max(row["cpu_s"] for row in rows) / 60
        said.append(f"`{name}`, workers {workers}: {', '.join(scores)} held out, in up to {minutes:.1f} minutes of CPU")
    return "; ".join(said)


def learned_table(data: Any) -> str:
    """Render what was learned, and what it took."""
    columns = ["data", "model", "workers", "steps", "held out", "reached", "loss, furthest from 1 worker's", "CPU time"]
    return table(columns, [cell for name, rows in data["rows"].items() for cell in cells(name, rows)])


def pages(data: Any) -> Pages:
    """Return the README's table, and the picture."""
    return {
        "learned": learned_table(data),
        "machine": f"On {data['machine']}.",
        "curves.svg": picture.draw(data["rows"]),
    }


if __name__ == "__main__":
    publish(HERE, measured_data(), pages)
