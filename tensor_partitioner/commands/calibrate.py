"""The command line of `calibrate`."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import click
import numpy as np

import planner
from executor.backend import BACKENDS, allow_tf32, array_module, on_one_stream
from executor.calibration import Job, Record, device_machine, host_machine, merged
from executor.calibration.bench import Bench, hardware_of
from executor.calibration.timing import (
    FEWEST_ROUNDS,
    STABLE,
    Timed,
    device_figures,
    reserved_bytes,
    timed,
    timed_products,
)
from executor.check import demand, is_pytorch, require_room
from executor.cluster import Cluster
from executor.process.launch import agree, require_alike, require_size
from executor.reporting import hardware
from executor.training import rank_programs
from planner.errors import InputError
from planner.extensions import load_operators
from planner.files import check_written, write_file
from planner.plans.plan import Plan
from planner.plans.plan_json import load_plan
from tensor_partitioner.commands.console import WRITTEN, Command, Finite, complete, operators_option, stdout
from tensor_partitioner.commands.on_ranks import (
    command_main,
    job_cluster,
    limited_threads,
    load_called,
    rank_options,
    with_kernels,
)
from tensor_partitioner.display import percent, printable, tracked
from topologies.reading import blocks_of
from topologies.schema import TopologyFile

DEFAULT_SECONDS = 60.0
PICTURES: dict[str, Any] = {"channels": 16, "classes": 16}
Probes = tuple[tuple[str, dict[str, Any]], ...]
PROBES: Probes = (
    ("mlp-2-192", {"batch": 64}),
    ("mlp-2-1280", {"batch": 320}),
    ("cnn-3-24", {"batch": 16, "image": 24, **PICTURES}),
    ("cnn-3-96", {"batch": 32, "image": 28, **PICTURES}),
    ("wresnet-26-1.25", {"batch": 16, "image": 40, "classes": 32}),
    ("wresnet-14-1.5", {"batch": 48, "image": 12, "classes": 10}),
    ("rnn-1-320", {"batch": 48}),
    ("transformer-2-384", {"batch": 4, "sequence": 96, "vocabulary": 6000}),
)
"""Models of the zoo that are measured besides the user's plans. They cover all kinds of operators at a range of sizes.
"""

LANGUAGE: dict[str, Any] = {"layers": 1, "batch": 8, "optimizer": "adamw"}
GPU_PROBES: Probes = (
    ("gpt2", {**LANGUAGE, "dtype": "mixed"}), ("gpt2", LANGUAGE),
    ("llama-1-2048", {"batch": 2, "sequence": 2048, "optimizer": "adamw", "dtype": "mixed"}),
    ("wresnet-50-1", {"batch": 32, "dtype": "mixed"}), ("wresnet-50-1", {"batch": 32}), ("mlp-3-4096", {"batch": 1024}),
)  # fmt: skip
"""The same for a GPU: kernels that are large enough to keep it busy, in 16 and 32 bits."""

TORCH = "torch"
BACKEND = "Array library. auto: cupy if there is a GPU; torch: as auto, with PyTorch's kernels."

EXAMPLES = ("mpirun -n 8 calibrate plan.json -o here.yaml", "simulate plan.json --topo here.yaml")


@click.command("calibrate", cls=Command, examples=EXAMPLES, context_settings={"show_default": True})
@click.argument("plans", nargs=-1, type=click.Path(path_type=Path))
@click.option("-o", "output", type=WRITTEN, required=True, metavar="FILE", help="Write the machine's topology file.")
@click.option("--backend", type=click.Choice([*BACKENDS, TORCH]), default="auto", help=BACKEND)
@rank_options
@click.option("--seconds", type=Finite(0), default=DEFAULT_SECONDS, help="Start no new measurement after this time.")
@click.option("--only-plans", is_flag=True, help="Measure only the kernels of PLANS.")
@operators_option
@click.pass_obj
def calibrate(ranks: Cluster, /, plans: tuple[Path, ...], **options: Any) -> int:
    """Measure this machine with the ranks that will run on it: mpirun -n 8 calibrate plan.json -o here.yaml.

    Measures kernels by operator and size, the kernels of PLANS, transfers, messages, memory, and how ranks share cores.
    The output is a topology file for every command: simulate plan.json --topo here.yaml.
    """
    ranks = agree(ranks, lambda: with_kernels(ranks, _kernels(options)))
    return Calibration(ranks, plans, options).run()


def _kernels(options: Mapping[str, Any]) -> str | None:
    """Return whose kernels to measure. Raises UsageError if --backend and --kernels contradict each other."""
    asked: str | None = options["kernels"]
    if options["backend"] != TORCH:
        return asked
    if asked not in (None, TORCH):
        raise click.UsageError(f"--backend torch measures PyTorch's kernels: leave out --kernels {asked}")
    return TORCH


@dataclass(frozen=True, slots=True)
class Calibration:
    """One run of `calibrate` on one rank."""

    ranks: Cluster
    paths: tuple[Path, ...]
    options: dict[str, Any]

    def run(self) -> int:
        """Measure everything and write the topology file (collective). Returns the exit status."""
        xp = agree(self.ranks, self._array_module)
        require_alike(self.ranks, {"array module": xp.__name__})
        plans = self.ranks.broadcast(agree(self.ranks, lambda: self._plans(GPU_PROBES if xp is not np else PROBES)))
        transport = agree(self.ranks, lambda: self.ranks.choose_transport(self.options["transport"], xp)).name
        with limited_threads(self.ranks, self.options["threads"]) as threads, on_one_stream(xp):
            bench = Bench(self.ranks, xp, transport, threads)
            file, measured = self._on_devices(bench, plans) if bench.is_device else self._on_host(bench, plans)
        on_first = self.ranks.rank == 0
        return agree(self.ranks, lambda: self._tell(bench, file, measured) if on_first else 0)

    def _array_module(self) -> ModuleType:
        """Select the array module and the device of this rank."""
        asked = self.options["backend"]
        xp = array_module("auto" if asked == TORCH else asked)
        allow_tf32(xp, self.options["tf32"])
        self.ranks.use_device(xp)
        return xp

    def _on_host(self, bench: Bench, plans: Sequence[Plan]) -> tuple[TopologyFile, Timed]:
        hardware = hardware_of(bench)
        measured = merged(self._timed(bench, plans, self.options["seconds"] / max(1, len(plans))))
        return host_machine(self._record(bench), hardware, measured), measured

    def _on_devices(self, bench: Bench, plans: Sequence[Plan]) -> tuple[TopologyFile, Timed]:
        """Measure the GPU, then the user's plans, then probes until the time is over."""
        until, limit_s = time.perf_counter() + self.options["seconds"], self.options["seconds"] / (1 + len(plans))
        figures = device_figures(bench)
        products, fastest = timed_products(bench, limit_s)
        of_ranks = self.ranks.all_gather((products, fastest))
        peaks = {name: max(of_rank[name] for _, of_rank in of_ranks) for name in fastest}
        probes = len(plans) - len(self.paths)
        timings = [*(timed_here for timed_here, _ in of_ranks), *self._timed(bench, plans[probes:], limit_s)]
        for probe in plans[:probes]:
            if any(self.ranks.all_gather(time.perf_counter() > until)):
                break
            timings += self._timed(bench, [probe], limit_s)
        measured = merged(timings)
        taken = reserved_bytes(bench, figures.places)
        return device_machine(self._record(bench), figures, peaks, taken, measured), measured

    def _timed(self, bench: Bench, plans: Sequence[Plan], limit_s: float) -> list[Timed]:
        timings: list[Timed] = []
        for plan in tracked(f"calibrating within {self.options['seconds']:g} s", plans):
            programs = rank_programs(plan, self.ranks.rank, self.options["prefetch"])
            if bench.is_device:
                pytorch = is_pytorch(self.ranks.library, bench.xp)
                own = demand(programs, bench.xp, bench.transport, pytorch=pytorch)
                require_room(self.ranks, bench.xp, f"{plan.search.model} (--only-plans leaves probes out)", own)
            timings += self.ranks.all_gather(timed(programs, bench, limit_s))
        return timings

    def _record(self, bench: Bench) -> Record:
        job = Job(self.ranks.size, bench.threads, bench.transport)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return Record(job, hardware(bench.xp, self.ranks), now)

    def _plans(self, probes: Probes) -> list[Plan] | None:
        """Read the user's plans and plan the probes. Only rank 0 returns them; the others return None."""
        check_written((self.options["output"],), self.paths)
        if self.options["only_plans"] and not self.paths:
            raise InputError("--only-plans: expected a plan, found none")
        load_operators(self.options["operator_files"])
        if self.ranks.rank != 0:
            return None
        plans = [load_plan(path) for path in self.paths]
        for path, plan in zip(self.paths, plans, strict=True):
            require_size(str(path), plan.workers, self.ranks)
            load_called(path, plan.graph, self.options["operator_files"])
        models = [planner.model(name, **options) for name, options in probes if not self.options["only_plans"]]
        return [*(planner.plan(model, workers=self.ranks.size) for model in models), *plans]

    def _tell(self, bench: Bench, file: TopologyFile, measured: Timed) -> int:
        """Write the topology file and print a summary, with a warning if the measurements vary too much."""
        output = self.options["output"]
        write_file(output, blocks_of(file))
        threads = "" if bench.is_device else f" of {bench.threads} threads"
        stdout().print(
            f"{printable(str(output))}: {self.ranks.size} ranks{threads}, transport {bench.transport}, "
            f"{len(measured.seconds)} tasks measured, spread {percent(measured.spread)}"
        )
        if measured.rounds < FEWEST_ROUNDS or measured.spread > STABLE:
            print(
                f"warning: the measurements are too noisy: after {measured.rounds} rounds (expected at least "
                f"{FEWEST_ROUNDS}) they differ by {percent(measured.spread)}, expected {percent(STABLE)}; stop other "
                "programs or allow more --seconds",
                file=sys.stderr,
                flush=True,
            )
        return 0


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command on every rank of the job."""
    complete(calibrate)
    command_main(calibrate, job_cluster(), args)
