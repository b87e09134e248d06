"""Diagnoses of public reports beside what is known to be true of them: `python -m results diagnoses`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec

from results.experiment import Pages, publish, table
from simulator.projection.network import cluster
from tensor_partitioner import display
from tensor_partitioner.commands.diagnose import diagnose
from tensor_partitioner.launch import read_launch

HERE = Path(__file__).parent
REPORTS: tuple[dict[str, str], ...] = msgspec.yaml.decode(
    (HERE / "reports.yaml").read_bytes(), type=tuple[dict[str, str], ...]
)
OUT_OF_MEMORY = "out of memory"


def diagnosed(report: dict[str, str]) -> dict[str, Any]:
    """Return what is said of a report: its verdict in the words of `truth`, seconds and bytes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, report["file"])
        path.write_text(report["text"])
        launch = read_launch(str(path), report.get("model"))
    diagnosis = diagnose(launch, cluster(report["topo"]), report.get("measured"))
    step = diagnosis.step
    verdict = diagnosis.verdict.partition(":")[0] if step.fits else OUT_OF_MEMORY
    return {
        "report": report["report"], "parallel": str(diagnosis.parallel), "topo": report["topo"], "verdict": verdict,
        "truth": report["truth"], "seconds": step.seconds, "measured_s": diagnosis.measured_s,
        "needed_bytes": step.needed_bytes, "capacity_bytes": step.capacity_bytes, "assumed": list(launch.assumed),
    }  # fmt: skip


def pages(data: dict[str, Any]) -> Pages:
    """Return the table, and how many are right."""
    rows = [
        [
            row["report"], f"`{row['parallel']}`",
            "" if row["measured_s"] is None else display.seconds(row["measured_s"]), display.seconds(row["seconds"]),
            f"{row['needed_bytes'] / 1e9:.3g} of {row['capacity_bytes'] / 1e9:.3g}",
            row["verdict"], row["truth"],
        ]
        for row in data["reports"]
    ]  # fmt: skip
    right = sum(row["verdict"] == row["truth"] for row in data["reports"])
    heads = ["report", "parallelism", "measured", "predicted", "memory (GB)", "verdict", "what is known"]
    return {"reports": f"Right in {right} of {len(rows)}.\n\n{table(heads, rows)}"}


def main() -> None:
    """Diagnose every report."""
    publish(HERE, {"reports": [diagnosed(report) for report in REPORTS]}, pages)


if __name__ == "__main__":
    main()
