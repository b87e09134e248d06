"""The command line of `execute`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import click
import numpy as np
from threadpoolctl import threadpool_info

from executor.backend import BACKENDS, allow_tf32, array_module
from executor.check import Demand, alone, demand, is_pytorch, require_room
from executor.checkpoint import checkpoints, last_checkpoint
from executor.cluster import Cluster
from executor.job import Job, JobRequest, JobResult
from executor.logs import Log, line, sink_of
from executor.process import blas
from executor.process.guard import keep_errors_in
from executor.process.launch import SharedError, agree, digest, on_first_rank, require_alike, require_size
from executor.reporting import hardware, report, trace
from executor.training import RankPrograms, rank_programs
from executor.transport import transports_between
from executor.weights import READERS
from planner.errors import InputError
from planner.extensions import load_operators
from planner.failures import BAD_INPUT, JOB_FAILED
from planner.files import check_written, read_input
from planner.graph.facts import amounts
from planner.graph.ir import Graph
from planner.plans.plan import Plan
from planner.plans.plan_json import plan_from_file
from planner.report.schema import Report, Setting, write_reports
from planner.report.tables import finding
from tensor_partitioner import display
from tensor_partitioner.commands.console import WRITTEN, Command, collect_seldom, complete, operators_option, stdout
from tensor_partitioner.commands.on_ranks import (
    command_main,
    job_cluster,
    limited_threads,
    load_called,
    load_pytorch,
    rank_options,
    with_kernels,
)
from tensor_partitioner.commands.training_options import check_one_plan, job_request, training_options
from tensor_partitioner.display import progress

OF_STEPS: Mapping[str, str] = {"json_path": "--json", "trace_path": "--trace", "tasks": "--tasks", "memory": "--memory"}
"""Options, by parameter, that report on steps of this run and so need at least one step."""

COLLECTIVES = "How exchanges run: as point-to-point messages, or as PyTorch collectives under torchrun."

EXAMPLES = (
    "mpirun -n 8 execute plan.json --steps 20 --json executed.json",
    "torchrun --nproc-per-node 8 -m executor plan.json --check",
)


@click.command("execute", cls=Command, examples=EXAMPLES, context_settings={"show_default": True})
@click.argument("plans", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--steps", type=click.IntRange(1), default=1, help="Training iterations.")
@click.option("--backend", type=click.Choice(BACKENDS), default="auto", help="Array library. auto: cupy on a GPU.")
@rank_options
@click.option("--collectives", type=click.Choice(["pairs", "library"]), default="pairs", help=COLLECTIVES)
@training_options
@click.option("--check", is_flag=True, help="Also train on one worker and compare gradients and weights.")
@operators_option
@click.option("--json", "json_path", type=WRITTEN, help="Write the report as JSON (several plans: an array).")
@click.option("--trace", "trace_path", type=WRITTEN, help="Trace the last plan's last step, for ui.perfetto.dev.")
@click.option("--tasks", is_flag=True, help="Include the time of every task of the last step in the report.")
@click.option("--graphs", is_flag=True, help="Run the steps of a single GPU as a CUDA graph; needs PyTorch's kernels.")
@click.option("--memory", is_flag=True, help="Measure memory that kernels allocate outside the arena (slower).")
@click.pass_obj
def execute(ranks: Cluster, /, plans: tuple[Path, ...], **options: Any) -> int:
    """Train each of PLANS in turn, on as many ranks as the plan has workers: mpirun -n 8 execute plan.json."""
    collect_seldom()
    if options["checkpoint"] is not None:
        keep_errors_in(options["checkpoint"])
    ranks = agree(ranks, lambda: with_kernels(ranks, options["kernels"]).with_collectives(options["collectives"]))
    return Execution(ranks, plans, options).run()


@dataclass(frozen=True, slots=True)
class Execution:
    """One run of `execute` on one rank."""

    ranks: Cluster
    paths: tuple[Path, ...]
    options: Mapping[str, Any]

    def run(self) -> int:
        """Check all inputs, then train each plan; return the exit status (collective)."""
        xp = agree(self.ranks, self._array_module)
        require_alike(self.ranks, {"array module": xp.__name__})
        plans = self._plans()
        allow_tf32(xp, self.options["tf32"])  # after plans and weights have imported PyTorch if they need it
        options = dict(self.options)
        if folder := options["resume"]:  # rank 0 decides: file systems may show the folder differently to other ranks
            options["resume"] = self.ranks.broadcast(on_first_rank(self.ranks, lambda: self._resumed(folder)))
        choice = agree(self.ranks, lambda: self.ranks.choose_transport(self.options["transport"], xp))
        pairs = list(zip(self.paths, plans, strict=True))
        requests = agree(self.ranks, lambda: [job_request(*pair, xp, choice.name, options) for pair in pairs])
        reports: list[Report] = []
        failed = False
        with limited_threads(self.ranks, self.options["threads"]) as threads:
            for (path, plan), request in zip(pairs, requests, strict=True):
                settings: dict[str, Setting] = {"threads": threads, **choice.settings}
                failed = bool(self._train((path, plan), request, settings, reports)) or failed
        return self.ranks.all_gather(JOB_FAILED if failed else 0)[0]

    def _train(
        self, source: tuple[Path, Plan], request: JobRequest, settings: Mapping[str, Setting], reports: list[Report]
    ) -> str:
        """Train one plan. Return why it failed, "" if it did not; ranks other than 0 always return ""."""
        path, plan = source
        told = [option for name, option in OF_STEPS.items() if self.options[name]]
        if told and request.first_step >= request.steps:
            raise SharedError(
                f"{path}: {told[0]} needs a step to run: expected more --steps than the {request.first_step} that are "
                f"done, found {request.steps}",
                BAD_INPUT,
            )
        programs = agree(self.ranks, partial(self._programs, plan, request))
        request = self._with_room(path, programs, request)
        log = on_first_rank(self.ranks, partial(log_of, plan.graph, request))
        with closing(Job(programs, self.ranks, request, log)) as job:
            if request.first_step >= request.steps:
                self._tell_done(path, request, job.finish())
                return ""
            with self._progress(path, plan.graph, request) as advance:
                result = job.run(advance)
        reason = ""
        if self.ranks.rank == 0:
            reports.append(report(plan, path, result, {**self._settings(request, result), **settings}))
            reason = failure(reports[-1], result)
            self._tell_left_out(result)
        on_first_rank(self.ranks, partial(self._write, reports, result))
        self._print(reports, reason)
        return reason

    def _with_room(self, path: Path, programs: RankPrograms, request: JobRequest) -> JobRequest:
        """Return the request with the bytes that its GPU will use. Raises SharedError if they are not free."""
        if request.xp is np:
            return request

        def demanded() -> Demand:
            pytorch = is_pytorch(self.ranks.library, request.xp)
            own = demand(programs, request.xp, request.transport, pytorch=pytorch)
            if not request.check or self.ranks.rank != 0:
                return own
            return own.beside(demand(alone(programs.plan), request.xp, "p2p", pytorch=False))

        planned = require_room(self.ranks, request.xp, str(path), agree(self.ranks, demanded))
        return replace(request, planned_bytes=planned)

    def _array_module(self) -> ModuleType:
        """Check everything that needs no plan, then select the array module and device of this rank."""
        written = ("json_path", "trace_path", "save_weights", "log_to")
        read = (self.options["weights"],) if self.options["weights"] else ()
        check_written([self.options[name] for name in written], (*self.paths, *read))
        check_one_plan(len(self.paths), self.options)
        xp = array_module(self.options["backend"])
        self.ranks.use_device(xp)
        load_operators(self.options["operator_files"])
        if self.options["weights"] and self.options["weights"].suffix not in READERS:
            load_pytorch(self.options["weights"])
        return xp

    def _resumed(self, folder: Path) -> Path | None:
        """Return the checkpoint to resume from; None if this run writes its checkpoints there and there is none yet."""
        if folder == self.options["checkpoint"] and not checkpoints(folder):
            print(f"{folder}: no checkpoint yet, training starts from step 0", flush=True)
            return None
        return last_checkpoint(folder)

    def _plans(self) -> list[Plan]:
        """Read all plans on rank 0 and broadcast them. Raises SharedError if a rank's file has other content."""
        contents = self.ranks.broadcast(on_first_rank(self.ranks, lambda: [*map(read_input, self.paths)]))
        files = (*self.paths, *self.options["operator_files"])  # plans need not exist on every host
        here = {str(path): digest(read_input(path)) for path in files if os.access(path, os.R_OK)}
        require_alike(self.ranks, here)
        return agree(self.ranks, lambda: list(map(self._plan, self.paths, contents)))

    def _plan(self, path: Path, content: bytes) -> Plan:
        plan = plan_from_file(path, content)
        require_size(str(path), plan.workers, self.ranks)
        load_called(path, plan.graph, self.options["operator_files"])
        if self.options["check"] and not plan.graph.updates:
            raise InputError(f"{path}: --check compares updated tensors, and the graph updates none")
        return plan

    def _programs(self, plan: Plan, request: JobRequest) -> RankPrograms:
        metric = request.data.held_out.metric if request.evaluate and request.data.held_out else None
        return rank_programs(plan, self.ranks.rank, self.options["prefetch"], metric)

    def _tell_done(self, path: Path, request: JobRequest, result: JobResult) -> None:
        unused = "; --schedule has no effect" if self.options["schedule"] else ""
        print(f"{path}: {request.first_step} steps are done, {request.steps} were requested{unused}", flush=True)
        for score in result.evaluations.values():
            print(f"{path}: held-out {score}", flush=True)
        self._tell_left_out(result)

    def _progress(self, path: Path, graph: Graph, request: JobRequest) -> AbstractContextManager[Callable[[], None]]:
        """Return a progress bar for the terminal of rank 0, or nothing if the job logs lines."""
        if request.log_every is not None:
            return nullcontext(lambda: None)
        return progress(path.name, request.steps - request.first_step, amounts(graph))

    def _settings(self, request: JobRequest, result: JobResult) -> dict[str, Setting]:
        on_host: dict[str, Setting] = {"blas": blas(threadpool_info())} if request.xp is np else {}
        return {
            "backend": request.xp.__name__, **on_host, "kernels": result.library,
            **({"tf32": True} if self.options["tf32"] and request.xp is not np else {}),
            "transport": transports_between(request.transport, self.ranks.size, self.ranks.ranks_on_host),
            **({"collectives": "library"} if self.options["collectives"] == "library" else {}),
            "prefetch": self.options["prefetch"], "data": request.data.identity,
            **({} if request.weights is None else {"weights": request.weights.where}),
            "schedule": request.schedule.text, "hardware": hardware(request.xp, self.ranks),
        }  # fmt: skip

    def _write(self, reports: Sequence[Report], result: JobResult) -> None:
        """Write the reports so far, and the trace of the last one."""
        if self.options["json_path"] is not None:
            write_reports(self.options["json_path"], *reports)
        if self.options["trace_path"] is not None:
            one_clock = self.ranks.ranks_on_host == self.ranks.size
            trace(result, one_clock).write(self.options["trace_path"])

    def _tell_left_out(self, result: JobResult) -> None:
        if result.left_out:
            names = ", ".join(result.left_out)
            print(
                f"{self.options['save_weights']}: does not contain {names}, whose content is unknown: load it with "
                "strict=False, or train with --weights",
                flush=True,
            )

    def _print(self, reports: Sequence[Report], reason: str) -> None:
        """Print the last report. Files are written first, because the reader of a pipe may close it."""
        for last in reports[-1:]:
            console = stdout()
            console.print(*display.tables(last), sep="\n")
            console.print(finding(last), soft_wrap=True)
            sys.stdout.flush()
            if reason:
                print(f"error: {reason}", file=sys.stderr, flush=True)


def log_of(graph: Graph, request: JobRequest) -> Log:
    """Return the log of a job, with the sinks that its options name. Raises what `sink_of` raises."""
    log = Log(graph, request.schedule, range(request.first_step, request.steps), request.data.steps_per_epoch)
    if request.log_every is not None:
        log.sinks.append(line)
    if request.log_to is not None:
        log.sinks.append(sink_of(request.log_to, request.first_step))
    return log


def failure(job: Report, result: JobResult) -> str:
    """Return why a job that ran to its end failed; "" if it did not."""
    if result.diverged:
        return f"{job.plan}: {result.diverged}: --on-nan skip undoes such steps"
    if job.check is None or job.check.passed:
        return ""
    worst = job.check.worst_difference
    return (
        f"{job.plan}: {job.check.failed} of {job.check.tensors} tensors differ from training on one worker, most "
        f"{job.check.worst_tensor} by {'a non-finite value' if worst is None else f'{worst:.3g} of its largest'}"
        f"; rounding explains {job.check.tolerance:.3g}"
    )


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command on every rank of the job."""
    complete(execute)
    command_main(execute, job_cluster(), args)
