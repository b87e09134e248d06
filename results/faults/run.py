"""Faults x launchers x hosts x moments: what is named, when all has ended, how training goes on."""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from results.experiment import Pages, machine, publish, read_data, table
from results.faults.jobs import MPI, TORCH, Cell, Ended, disturb, prepare, resumed_alike, small_disk, train

HERE = Path(__file__).parent
LIMIT_S = 10.0
"""How soon after a fault everything is to have ended."""

MOMENTS = ("start", "step", "checkpoint")
RANK = r"rank {rank} on \S+: "

FAULTS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "kill": (MOMENTS, RANK + r"killed by signal 9"),
    "stop": (MOMENTS, RANK + r"(stopped by signal 19|no heartbeat)"),
    "segfault": (MOMENTS, RANK + r"killed by signal 11"),
    "launcher killed": (MOMENTS, r"rank \d+ on \S+: the launcher is gone|ranks? [\d, ]+ on \S+: no heartbeat"),
    "link cut": (MOMENTS, r"ranks? [\d, ]*{rank} on \S+: no heartbeat"),
    "host gone": (MOMENTS, r"ranks? [\d, ]*{rank} on \S+: no heartbeat"),
    "disk full": (("checkpoint",), r"No space left on device"),
    "memory limit": (("start", "step"), r"(rank {rank}: )?out of memory"),
    "different data": (("start",), RANK + r"--data: expected"),
    "different weights": (("start",), RANK + r"--weights: expected"),
    "NaN": (("step",), r"step \d+: .*is not finite"),
}
"""The moments at which a fault comes, and what the first line of errors must say of it."""

OF_TWO_HOSTS = ("link cut", "host gone")
ONE_HOST = ("different data", "different weights", "NaN")
"""What has nothing to do with how many hosts there are is tried on one."""


def cells() -> Iterator[Cell]:
    """Yield all cells, those that take least first."""
    for launcher in (MPI, TORCH):
        for hosts in (1, 2):
            for fault, (moments, _) in FAULTS.items():
                if (fault in OF_TWO_HOSTS and hosts == 1) or (fault in ONE_HOST and hosts == 2):
                    continue
                for moment in moments:
                    yield Cell(fault, launcher, hosts, moment)


def is_named(cell: Cell, errors: Sequence[str]) -> bool:
    """True if the first line of errors names the rank, where one is at fault, and the cause."""
    pattern = FAULTS[cell.fault][1].replace("{rank}", str(cell.ranks - 1))
    return bool(errors) and re.search(pattern, errors[0]) is not None


def tried(cell: Cell, folder: Path, references: dict[tuple[str, int], Path]) -> dict[str, Any]:
    """Let a fault come, and go on; return what was seen."""
    plan = prepare(folder, cell.ranks)
    key = (cell.launcher, cell.ranks)
    if key not in references:
        reference = folder.parent / f"undisturbed-{cell.launcher}-{cell.ranks}"
        train(cell, folder, plan, reference)
        references[key] = reference
    run = folder / "run"
    with small_disk(run) if cell.fault == "disk full" else nullcontext():
        ended = disturb(cell, folder, plan, run)
        try:
            alike, why = resumed_alike(cell, folder, plan, run, references[key]), ""
        except subprocess.SubprocessError as error:
            alike, why = False, str(getattr(error, "stderr", b"") or b"")[-300:]
    return row_of(cell, ended, alike, why)


def row_of(cell: Cell, ended: Ended, alike: bool, why: str) -> dict[str, Any]:
    """Return what is known of a cell."""
    return {
        "fault": cell.fault,
        "launcher": cell.launcher,
        "hosts": cell.hosts,
        "moment": cell.moment,
        "named": is_named(cell, ended.errors),
        "errors": [line[:300].replace(str(Path.home()), "~") for line in ended.errors[:3]],
        "lines": len(ended.errors),
        "status": ended.status,
        "seconds": ended.seconds,
        "left": ended.left,
        "alike": alike,
        "why": why,
    }


def passes(row: Mapping[str, Any]) -> bool:
    """True if a cell is as it should be."""
    return bool(row["named"] and row["status"] and row["seconds"] <= LIMIT_S and not row["left"] and row["alike"])


def failings(row: Mapping[str, Any]) -> str:
    """Say what of a cell is not as it should be, in few words."""
    words = {
        "not named": not row["named"],
        "status 0": row["status"] == 0,
        "late" if row["status"] is not None else "endless": row["seconds"] > LIMIT_S,
        f"{row['left']} left": bool(row["left"]),
        "not resumed alike": not row["alike"],
    }
    return ", ".join(word for word, is_so in words.items() if is_so)


def says(data: Any) -> str:
    """Return how many cells pass, and the longest time until all processes of one ended."""
    rows = data["rows"]
    good = sum(map(passes, rows))
    slowest = max((row["seconds"] for row in rows if passes(row)), default=0.0)
    return (
        f"{len(rows)} of {len([*cells()])} cells were run, and {good} pass. The slowest that passes "
        f"ended {slowest:g} s after its fault (limit: {LIMIT_S:g} s). {data['machine']}."
    )


def matrix(data: Any) -> str:
    """Render every cell: seconds, or what failed."""
    known = {(row["fault"], row["launcher"], row["hosts"], row["moment"]): row for row in data["rows"]}
    places = [(launcher, hosts, moment) for launcher in (MPI, TORCH) for hosts in (1, 2) for moment in MOMENTS]
    columns = ["fault", *(f"{launcher}, {hosts}: {moment}" for launcher, hosts, moment in places)]
    every = {(cell.fault, cell.launcher, cell.hosts, cell.moment) for cell in cells()}

    def shown(key: tuple[str, str, int, str]) -> str:
        if key not in every:
            return ""
        if key not in known:
            return "not run"
        row = known[key]
        return f"{row['seconds']:g} s" if passes(row) else f"**{failings(row)}** ({row['seconds']:g} s)"

    return table(columns, [(fault, *(shown((fault, *place)) for place in places)) for fault in FAULTS])


def messages(data: Any) -> str:
    """Render what the jobs said, once for each fault and launcher."""
    rows = {(row["fault"], row["launcher"]): row for row in reversed(data["rows"])}
    shown = [(fault, launcher, (row["errors"] or ["nothing"])[0]) for (fault, launcher), row in rows.items()]
    return table(("fault", "launcher", "first line"), [(a, b, f"`{line}`") for a, b, line in reversed(shown)])


def cost(data: Any) -> str:
    """Say how much CPU time heartbeats and comparing ranks take."""
    jobs, workers, steps = (data["cost"][key] for key in ("jobs", "workers", "steps"))
    guards = statistics.median(job["guards"] / (job["ranks"] + job["guards"]) for job in jobs)
    compared = statistics.median(job["comparison"] * workers * steps / job["ranks"] for job in jobs)
    return (
        f"{len(jobs)} jobs of {steps} steps of {data['cost']['model']} on {workers} ranks: guards take {guards:.2%} of "
        f"a step's CPU time, the checksums of a comparison {compared:.2%} (medians). {data['cost']['machine']}."
    )


def pages(data: Any) -> Pages:
    """Return what the README says is found."""
    return {"found": says(data), "cells": matrix(data), "messages": messages(data), "cost": cost(data)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run cells: those of a pattern, else all that are not known yet; publish after each."""
    parser = argparse.ArgumentParser(prog="python -m results.faults.run", description=__doc__)
    parser.add_argument("--only", metavar="PATTERN", help='cells such as "kill, mpirun, 1 host, step"; * for any')
    parser.add_argument("--anew", action="store_true", help="forget what is known")
    options = parser.parse_args(arguments)
    data = read_data(HERE)
    known = {} if options.anew else _known(data["rows"])
    wanted = [cell for cell in cells() if _is_wanted(cell, options.only, known)]
    with TemporaryDirectory(prefix="faults") as name:
        references: dict[tuple[str, int], Path] = {}
        for number, cell in enumerate(wanted):
            folder = Path(name, str(number))
            folder.mkdir()
            known[str(cell)] = row = tried(cell, folder, references)
            print(f"{cell}: {failings(row) or 'as it should be'} ({row['seconds']:g} s)", flush=True)
            rows = [known[str(every)] for every in cells() if str(every) in known]
            publish(HERE, {"machine": machine(), "rows": rows, "cost": data["cost"]}, pages)
    return 0


def _known(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    fields = ("fault", "launcher", "hosts", "moment")
    return {str(Cell(*(row[name] for name in fields))): row for row in rows}


def _is_wanted(cell: Cell, pattern: str | None, known: Mapping[str, Any]) -> bool:
    return fnmatch(str(cell), f"*{pattern}*") if pattern else str(cell) not in known


if __name__ == "__main__":
    sys.exit(main())
