"""Run every stage, each in a process of its own: `python -m results.gpu [--backend cupy|numpy] [--out FOLDER]`.

Stages that time nothing run at once.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from results.experiment import ROOT, now
from results.gpu.processes import Ended, Process, run as run_process
from results.gpu.settings import SCALES, UNUSABLE, Run
from results.gpu.wheels import environment

DEFAULT_S = 300.0
TO_WRITE_S = 4.0
"""A stage ends its own processes so long before its limit, and writes what it has."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A module of this package, and the seconds that it may take."""

    name: str
    most_s: float


GROUPS = (
    (Stage("probe", 40),),
    (Stage("predict", 20),),
    (Stage("operators", 115), Stage("plans", 115), Stage("marked_tests", 115)),
    (Stage("steps", 110),),
    (Stage("calibrate", 60),),
)
"""What is done, group by group, all of a group at once: predictions before anything runs, then what must be right."""

STAGES = tuple(stage for group in GROUPS for stage in group)


def run_stage(stage: Stage, run: Run, variables: Mapping[str, str]) -> Ended:
    """Run a stage within its limit and the run's."""
    until = min(run.until, time.time() + stage.most_s)
    command = replace(run, until=until - TO_WRITE_S).command(stage.name)
    return run_process(Process(stage.name, command, stage.most_s, variables), run.work, until)


def run_stages(run: Run, variables: Mapping[str, str]) -> bool:
    """Run all stages, and write summary.json after each; return whether all ended with status 0."""
    summary: dict[str, Any] = {"backend": run.backend, "date": now(), "limit_s": round(run.left_s)}
    rows: dict[str, dict[str, Any]] = {}
    for group in GROUPS:
        with ThreadPoolExecutor(len(group)) as pool:
            running = {pool.submit(run_stage, stage, run, variables): stage for stage in group}
            for future in as_completed(running):
                ended, stage = future.result(), running[future]
                row = {key: value for key, value in asdict(ended).items() if key != "rows"}
                rows[stage.name] = {**row, "seconds": round(ended.seconds, 1), "limit_s": stage.most_s}
                run.write("summary", summary | {"stages": [rows[each.name] for each in STAGES if each.name in rows]})
                print(f"{stage.name}: {ended.failure or 'as it should be'} ({ended.seconds:.0f} s)", flush=True)
        if rows["probe"]["status"] == UNUSABLE:
            break
    return all(row["status"] == 0 for row in rows.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return an exit status: 0 if everything is as it should be."""
    parser = argparse.ArgumentParser(prog="python -m results.gpu", description="Measure one GPU, within a time limit.")
    parser.add_argument("--backend", choices=sorted(SCALES), default="cupy", help="numpy: a small trial on this host")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu", metavar="FOLDER", help="for the JSON files")
    parser.add_argument("--seconds", type=float, default=DEFAULT_S, help="limit of all stages (default: %(default)g)")
    parser.add_argument("--wheels", type=Path, metavar="FOLDER", help="install these packages for this run first")
    options = parser.parse_args(arguments)
    until = time.time() + options.seconds
    options.out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="results-gpu-") as folder:
        run, work = Run(options.backend, options.out.resolve(), Path(folder), until), Path(folder)
        try:
            carried = environment(options.wheels, work / "site") if options.wheels else {}
        except (FileNotFoundError, subprocess.CalledProcessError) as error:
            parser.error(f"--wheels: {error}")
        path = os.pathsep.join(filter(None, [carried.get("PYTHONPATH"), str(ROOT), os.environ.get("PYTHONPATH")]))
        variables = {**carried, "PYTHONPATH": path, "CUPY_CACHE_DIR": str(work / "cupy")}
        return 0 if run_stages(run, variables) else 1


if __name__ == "__main__":
    sys.exit(main())
