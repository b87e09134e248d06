"""Predicted and measured step times of jobs over two and four hosts, whose links have a known rate.

    python -m results.shaped_links.run

needs root, for hosts are network namespaces of this machine, and MPICH; writes data.json and the table in README.md.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from planner.report.schema import read_reports
from results.experiment import Pages, launcher, machine, now, publish, run_command, table
from results.shaped_links.hosts import hosts
from topologies.reading import blocks_of, read_record
from topologies.schema import LinkEntry, LinkType, SwitchEntry, TopologyFile

HERE = Path(__file__).parent
MODELS: Mapping[str, Sequence[str]] = {
    "mlp-4-1024": ("--batch", "256"),
    "cnn-5-64": ("--batch", "32", "--image", "16"),
    "transformer-4-256": ("--batch", "4", "--sequence", "64"),
}
RANKS, STEPS = 4, 6
HOSTS = (2, 4)
MEGABITS = (100, 1000)
PAYLOAD = 1448 / 1514
"""Bytes of a message in a full frame of Ethernet, whose headers, IP's and TCP's (with time stamps) take the rest."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A model on so many hosts, their links of a rate."""

    model: str
    hosts: int
    megabits: int


CELLS = tuple(Cell(model, count, rate) for model in MODELS for count in HOSTS for rate in MEGABITS)


def of_hosts(calibrated: TopologyFile, count: int, megabits: int) -> TopologyFile:
    """Put a calibrated machine's ranks on so many hosts of a memory and a link each; the cores are common."""
    link = LinkType(name="between", bandwidth_bytes_per_s=megabits * 1e6 / 8 * PAYLOAD, direction="each", latency_s=0.0)
    ranks, memory = calibrated.devices[0], calibrated.memories[0]
    return msgspec.structs.replace(
        calibrated,
        devices=(msgspec.structs.replace(ranks, memory=f"memory*{count}"),),
        memories=(msgspec.structs.replace(memory, name=f"memory*{count}"),),
        link_types=(*calibrated.link_types, link),
        switches=(SwitchEntry(name=f"host*{count}"), SwitchEntry(name="network")),
        links=(
            LinkEntry(ends=(f"rank*{RANKS}", f"host*{count}"), type="messages"),
            LinkEntry(ends=(f"host*{count}", "network"), type="between"),
        ),
    )


def predicted(folder: Path) -> Iterator[dict[str, Any]]:
    """Plan, calibrate on one host, and simulate every cell."""
    for model, options in MODELS.items():
        run_command("plan", model, *options, "--workers", RANKS, "-o", folder / f"{model}.json")
    plans, here = [folder / f"{model}.json" for model in MODELS], folder / "here.yaml"
    ranks = (launcher(), "-n", RANKS)
    run_command("calibrate", *plans, "--only-plans", "--transport", "p2p", "-o", here, before=ranks)
    calibrated = read_record(here, TopologyFile)
    for cell in CELLS:
        topology, report = folder / "hosts.yaml", folder / "predicted.json"
        topology.write_text(blocks_of(of_hosts(calibrated, cell.hosts, cell.megabits)))
        plan = folder / f"{cell.model}.json"
        run_command("simulate", plan, "--topo", topology, "--json", report)
        (simulated,) = read_reports(report)
        yield {
            **msgspec.to_builtins(cell),
            "predicted_at": now(),
            "predicted_s": simulated.seconds_per_step,
            "across_bytes": sum(link.nbytes for link in simulated.links if link.name.endswith("->network")),
        }


def measured(cell: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Run a cell."""
    report = folder / "measured.json"
    with hosts(folder, cell["hosts"], cell["megabits"]) as there:
        spread = ("-hosts", ",".join(there.addresses), "-ppn", RANKS // there.count)
        launched = (launcher(), "-launcher", "rsh", "-launcher-exec", there.agent, *spread, "-n", RANKS)
        ranks = (*there.around, "env", "UCX_TLS=tcp,self", *launched)  # else it finds that memory is common
        plan, how = folder / f"{cell['model']}.json", ("--transport", "p2p", "--threads", 1, "--steps", STEPS)
        run_command("execute", plan, *how, "--json", report, before=ranks)
    (executed,) = read_reports(report)
    return {"measured_at": now(), "measured_s": executed.seconds_per_step, "step_s": executed.step_seconds}


def pages(data: Any) -> Pages:
    """Return the README's table."""
    columns = ["model", "hosts", "Mbit/s", "MB across links", "predicted ms", "measured ms", "predicted/measured"]
    rows = [
        [
            f"`{cell['model']}`",
            cell["hosts"],
            cell["megabits"],
            f"{cell['across_bytes'] / 1e6:.2f}",
            f"{1e3 * cell['predicted_s']:.1f}",
            f"{1e3 * cell['measured_s']:.1f}",
            f"{cell['predicted_s'] / cell['measured_s']:.2f}",
        ]
        for cell in data["cells"]
    ]
    return {"machine": f"Measured on: {data['machine']}.", "steps": table(columns, rows)}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        predictions = list(predicted(folder))
        cells = [cell | measured(cell, folder) for cell in predictions]
    publish(HERE, {"machine": machine(), "cells": cells}, pages)
