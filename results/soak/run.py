"""Train for minutes or hours with faults at random moments, and compare with training without faults."""

from __future__ import annotations

import argparse
import csv
import os
import random
import re
import signal
import statistics
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from executor.checkpoint import checkpoints
from results.experiment import Pages, machine, publish, table
from results.faults import jobs
from results.faults.inject import fill_disk
from results.faults.processes import ranks_of, same_files, shared_memory_of
from results.faults.run import FAULTS

HERE = Path(__file__).parent
KILL, DISK, LINK = "kill", "disk full", "link cut"
RANKS, ENDLESS, EVERY = 8, 10**8, 100
EARLIEST_S, LATEST_S, SAMPLED_S = 30.0, 90.0, 2.0
WARM_S, WINDOW_S = 60.0, 60.0
"""What a rank holds in its second minute is compared with what it holds in its last minute."""

Sample = tuple[float, int, int]
"""What a rank holds: the age of its job in seconds, resident KiB, open files."""


@dataclass(slots=True)
class Soak:
    """A training of a plan into a folder of checkpoints, and the shared memory that its ranks had."""

    plan: Path
    run: Path
    segments: set[Path] = field(default_factory=set)

    def live(self, fault: str, after_s: float, steps: int, chosen: random.Random) -> dict[str, Any]:
        """Train from the last checkpoint to the end, or until a fault `after_s` seconds after all ranks began.

        Return what came and how it ended.
        """
        place = (2, "step", RANKS // 2) if fault == LINK else (1, "step", RANKS)
        cell, folder, begin, started = jobs.Cell(fault, jobs.MPI, *place), self.plan.parent, done(self.run), time.time()
        words = ("--steps", str(steps), "--every", str(EVERY), "--log-to", str(self.run.with_suffix(".csv")))
        samples: dict[int, list[Sample]] = defaultdict(list)
        with jobs.network_of(cell, folder) as network, (folder / "errors").open("w") as errors:
            (line,) = jobs.launch(cell, network, jobs.command(self.plan, self.run, *words))
            where = jobs.environment() | {"TMPDIR": str(folder / "tmp")}
            job = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=errors, cwd=folder, env=where)
            until = float("inf")
            while job.poll() is None and time.time() < until:
                time.sleep(SAMPLED_S)
                if fault and until == float("inf") and len(ranks_of(self.plan)) == RANKS:
                    until = time.time() + after_s
                self._sample(time.time() - started, samples)
            if fault == LINK:
                jobs.act(cell, [job], network, self.plan)
            elif fault == DISK:
                fill_disk(folder)
            elif fault:
                os.kill(chosen.choice(ranks_of(self.plan)), signal.SIGKILL)
            status = jobs.await_end([job], self.plan, time.time() + jobs.END_S)
        (self.run / "filling").unlink(missing_ok=True)
        lines = [each for each in (folder / "errors").read_text().splitlines() if each.startswith("error: ")]
        cause = FAULTS[fault][1].replace("{rank}", r"\d+") if fault else "^$"
        return {
            "fault": fault,
            "from_step": begin,
            "to_step": done(self.run),
            "seconds": round(time.time() - started, 1),
            "ended_well": bool(status) == bool(fault) and re.search(cause, (lines or [""])[0]) is not None,
            "error": (lines or [""])[0].replace(str(folder), ""),
            **growth(samples.values()),
        }

    def _sample(self, age_s: float, samples: Mapping[int, list[Sample]]) -> None:
        for process in ranks_of(self.plan):
            try:
                self.segments |= shared_memory_of(process)
                status, files = Path(f"/proc/{process}/status").read_text(), len(os.listdir(f"/proc/{process}/fd"))
            except OSError:
                continue  # it has ended meanwhile
            if resident := re.search(r"VmRSS:\s+(\d+)", status):
                samples[process].append((age_s, int(resident[1]), files))


def done(run: Path) -> int:
    """Return the number of steps that the last checkpoint holds; 0 if there is none."""
    return int(checkpoints(run)[-1].name.partition("-")[2]) if checkpoints(run) else 0


def growth(ranks: Iterable[Sequence[Sample]]) -> dict[str, float]:
    """Return by how much memory and open files of ranks grew at most, if ranks lived for more than two minutes."""
    memory, files = [], []
    for samples in ranks:
        warm = [each for each in samples if WARM_S <= each[0] < WARM_S + WINDOW_S]
        last = [each for each in samples if each[0] >= max(samples[-1][0] - WINDOW_S, WARM_S + WINDOW_S)]
        if warm and last:
            memory.append(statistics.median(each[1] for each in last) / statistics.median(each[1] for each in warm) - 1)
            files.append(max(each[2] for each in last) - max(each[2] for each in warm))
    return {"growth": max(memory), "more_files": max(files)} if memory else {}


def curve(run: Path) -> list[tuple[str, str]]:
    """Read the table of steps and losses of a training, as written: with all digits."""
    with run.with_suffix(".csv").open() as file:
        return [(row["step"], row["loss"]) for row in csv.DictReader(file)]


def soaked(minutes: float) -> dict[str, Any]:
    """Train with faults for half of these minutes, then as many steps without; return what was seen."""
    begun, chosen = time.time(), random.Random("soak")
    lives: list[dict[str, Any]] = []
    with TemporaryDirectory(prefix="soak") as name:
        folder = Path(name)
        (folder / "tmp").mkdir()
        plan = jobs.prepare(folder, RANKS)
        disturbed, calm = Soak(plan, folder / "run"), Soak(plan, folder / "calm")
        with jobs.small_disk(disturbed.run):
            for fault in chain((KILL, DISK, LINK), repeat(KILL)):
                if len(lives) >= 3 and time.time() > begun + 30 * minutes:
                    break
                lives.append(disturbed.live(fault, chosen.uniform(EARLIEST_S, LATEST_S), ENDLESS, chosen))
                print(lives[-1], flush=True)
            steps = done(disturbed.run) + EVERY
            lives += [soak.live("", 0.0, steps, chosen) for soak in (disturbed, calm)]
            names = [{path.name for path in soak.run.iterdir()} for soak in (disturbed, calm)]
            files = sorted(names[0] ^ names[1]) + [path.name for path in (folder / "tmp").iterdir()]
            left = [*jobs.processes_of(plan), *filter(Path.exists, disturbed.segments | calm.segments), *files]
            return {
                "machine": machine(),
                "minutes": round((time.time() - begun) / 60, 1),
                "ranks": RANKS,
                "steps": steps,
                "lives": lives,
                "same_losses": curve(disturbed.run) == curve(calm.run),
                "same_checkpoint": same_files(checkpoints(disturbed.run)[-1], checkpoints(calm.run)[-1]),
                "left": [str(each) for each in left],
            }


def says(data: Any) -> str:
    """Say what was run and how it ended."""
    lives, equal = data["lives"], {True: "equal", False: "**not** equal"}
    calm, kills = lives[-1], sum(life["fault"] == KILL for life in lives)
    return (
        f"{data['minutes']:g} minutes, {data['ranks']} ranks, {data['steps']:,} steps; {kills} kills, a full disk, a "
        f"cut link. {sum(life['ended_well'] for life in lives)} of {len(lives)} jobs ended as they should. The losses "
        f"of all steps are {equal[data['same_losses']]} to those without faults, to the bit; all bytes of the last "
        f"checkpoint are {equal[data['same_checkpoint']]}. In the last job, of {calm['seconds'] / 60:.1f} minutes, "
        f"resident memory of a rank grew by at most {calm.get('growth', 0):.2%} from its second minute to its last, "
        f"and its open files by {calm.get('more_files', 0)}. Left behind: {', '.join(data['left']) or 'nothing'}. "
        f"{data['machine']}."
    )


def pages(data: Any) -> Pages:
    """Return the parts of the README that are made from data."""
    fields = ("from_step", "to_step", "seconds", "error")
    rows = [(life["fault"] or "none", *(life[name] for name in fields)) for life in data["lives"]]
    columns = ["fault", "from step", "last checkpoint", "seconds", "first line of errors"]
    return {"found": says(data), "lives": table(columns, rows)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and publish; exit status 1 if anything differs or is left."""
    parser = argparse.ArgumentParser(prog="python -m results.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="how long, half of it with faults (default 10)")
    data = soaked(parser.parse_args(arguments).minutes)
    publish(HERE, data, pages)
    is_same = data["same_losses"] and data["same_checkpoint"] and all(life["ended_well"] for life in data["lives"])
    return 0 if is_same and not data["left"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
