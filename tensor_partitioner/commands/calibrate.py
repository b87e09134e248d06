"""The command line of `calibrate`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import click
import numpy as np

import planner
from executor.calibration.hardware import Hardware, hardware_of
from executor.calibration.machine import Job, merged, topology_text
from executor.calibration.timing import FEWEST_ROUNDS, STABLE, Timed, timed
from executor.cluster import Cluster
from executor.process.launch import agree, require_size
from executor.reporting import hardware
from executor.training import rank_programs
from planner.errors import InputError
from planner.extensions import load_operators
from planner.files import check_written, write_file
from planner.plans.plan import Plan
from planner.plans.plan_json import load_plan
from tensor_partitioner.commands.console import WRITTEN, Finite, complete, operators_option, stdout
from tensor_partitioner.commands.help import Command
from tensor_partitioner.commands.on_ranks import command_main, job_cluster, limited_threads, rank_options, with_kernels
from tensor_partitioner.display import percent, printable
from tensor_partitioner.display.progress import tracked

DEFAULT_SECONDS = 60.0
PICTURES: dict[str, Any] = {"channels": 16, "classes": 16}
PROBES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("mlp-2-192", {"batch": 64}),
    ("mlp-2-1280", {"batch": 320}),
    ("cnn-3-24", {"batch": 16, "image": 24, **PICTURES}),
    ("cnn-3-96", {"batch": 32, "image": 28, **PICTURES}),
    ("wresnet-26-1.25", {"batch": 16, "image": 40, "classes": 32}),
    ("wresnet-14-1.5", {"batch": 48, "image": 12, "classes": 10}),
    ("rnn-1-320", {"batch": 48}),
    ("transformer-2-384", {"batch": 4, "sequence": 96, "vocabulary": 6000}),
)
"""Models of the zoo whose tasks stand for all others: of every kind, at sizes apart from each other."""


EXAMPLES = ("mpirun -n 8 calibrate plan.json -o here.yaml", "simulate plan.json --topo here.yaml")


@click.command("calibrate", cls=Command, examples=EXAMPLES, context_settings={"show_default": True})
@click.argument("plans", nargs=-1, type=click.Path(path_type=Path))
@click.option("-o", "output", type=WRITTEN, required=True, metavar="FILE", help="Write the machine's topology file.")
@rank_options
@click.option("--seconds", type=Finite(0), default=DEFAULT_SECONDS, help="Begin nothing new after so long.")
@click.option("--only-plans", is_flag=True, help="Measure no other kernels than those of the plans.")
@operators_option
@click.pass_obj
def calibrate(ranks: Cluster, /, plans: tuple[Path, ...], **options: Any) -> int:
    """Measure this machine with the ranks that it will run with: mpirun -n 8 calibrate plan.json -o here.yaml.

    Kernels by operator and size, and the kernels of PLANS too; what transfers take, memory, messages, how ranks share
    cores. The file is a machine like any other: simulate plan.json --topo here.yaml.
    """
    ranks = agree(ranks, lambda: with_kernels(ranks, options["kernels"], options["tf32"]))
    return Calibration(ranks, plans, options).run()


@dataclass(frozen=True, slots=True)
class Calibration:
    """One run of the command on one rank."""

    ranks: Cluster
    paths: tuple[Path, ...]
    options: dict[str, Any]

    def run(self) -> int:
        """Measure everything, then write the file (collective)."""
        plans = self.ranks.broadcast(agree(self.ranks, self._plans))
        transport = agree(self.ranks, lambda: self.ranks.choose_transport(self.options["transport"], np)).name
        limit_s = self.options["seconds"] / max(1, len(plans))
        timings: list[Timed] = []
        with limited_threads(self.ranks, self.options["threads"]) as threads:
            speeds = hardware_of(self.ranks, threads)
            for plan in tracked(f"calibrating within {self.options['seconds']:g} s", plans):
                programs = rank_programs(plan, self.ranks.rank, self.options["prefetch"])
                timings += self.ranks.gather(timed(programs, self.ranks, transport, threads, limit_s))
        on_first = self.ranks.rank == 0
        return agree(self.ranks, lambda: self._tell(timings, speeds, threads, transport) if on_first else 0)

    def _plans(self) -> list[Plan] | None:
        """Read plans and make the probes (rank 0)."""
        check_written((self.options["output"],), self.paths)
        if self.options["only_plans"] and not self.paths:
            raise InputError("--only-plans: expected a plan, found none")
        load_operators(self.options["operator_files"])
        if self.ranks.rank != 0:
            return None
        plans = [load_plan(path) for path in self.paths]
        for path, plan in zip(self.paths, plans, strict=True):
            require_size(str(path), plan.workers, self.ranks)
        if self.options["only_plans"]:
            return plans
        return [
            planner.plan(planner.model(name, **options), workers=self.ranks.size) for name, options in PROBES
        ] + plans

    def _tell(self, timings: list[Timed], speeds: Hardware, threads: int, transport: str) -> int:
        """Write the file; say what it is, and whether the machine was too noisy."""
        output, measured = self.options["output"], merged(timings)
        job = Job(self.ranks.size, threads, transport)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        write_file(output, topology_text(job, speeds, measured, hardware(np, self.ranks), now))
        stdout().print(
            f"{printable(str(output))}: {job.ranks} ranks of {job.threads} threads, transport "
            f"{job.transport}, {len(measured.seconds)} tasks measured, spread {percent(measured.spread)}"
        )
        if measured.rounds < FEWEST_ROUNDS or measured.spread > STABLE:
            print(
                f"warning: this machine is too noisy for the time: after {measured.rounds} rounds (of at least "
                f"{FEWEST_ROUNDS}) measurements are {percent(measured.spread)} apart, expected {percent(STABLE)}; let "
                "it rest, or allow more --seconds",
                file=sys.stderr,
                flush=True,
            )
        return 0


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command on every rank of the job."""
    complete(calibrate)
    command_main(calibrate, job_cluster(), args)
