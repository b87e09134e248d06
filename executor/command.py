"""The command line of `execute`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, TypeVar

import click
import numpy as np
from threadpoolctl import threadpool_limits

import display
from executor.backend import BACKENDS, BackendError, array_module, require_dtypes
from executor.cluster import Cluster
from executor.data import DATA_SETS, DataError, DataSet, Digits
from executor.job import Findings, Job, Request, classification
from executor.launch import agreed, command_main, require_size
from executor.reporting import hardware, report, trace
from executor.training import Programs, lowered
from executor.transport import TRANSPORTS
from planner.extensions import load_operators, operators_option
from planner.files import check_written
from planner.plans.plan import Plan
from planner.plans.plan_json import load_plan
from planner.report.console import JOB_FAILED, progress, stdout
from planner.report.schema import Report, Setting, write_reports

T = TypeVar("T")

WRITTEN = click.Path(dir_okay=False, path_type=Path)


@click.command("execute", context_settings={"show_default": True})
@click.argument("plans", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--steps", type=click.IntRange(1), default=1, help="Training iterations.")
@click.option("--backend", type=click.Choice(BACKENDS), default="auto", help="auto: cupy where a GPU is.")
@click.option("--transport", type=click.Choice(tuple(TRANSPORTS)), default="p2p")
@click.option("--prefetch", type=click.IntRange(0), default=1, help="Start fetches so many units early.")
@click.option("--data", type=click.Choice(tuple(DATA_SETS)), default="random")
@click.option("--eval", "evaluate", is_flag=True, help="Then classify held-out images (with --data digits).")
@click.option("--check", is_flag=True, help="Then train on one worker; compare gradients and updated tensors.")
@operators_option
@click.option("--json", "json_path", type=WRITTEN, help="Write the report; of several plans, an array.")
@click.option("--trace", "trace_path", type=WRITTEN, help="Write the last plan's last step for ui.perfetto.dev.")
@click.option("--tasks", is_flag=True, help="Put the seconds of every task of the last step into the report.")
@click.option("--threads", type=click.IntRange(1), help="BLAS threads per rank; default: cores per rank.")
@click.option("--memory", is_flag=True, help="Measure what kernels allocate outside the arena (slower).")
@click.pass_obj
def execute(ranks: Cluster, /, plans: tuple[Path, ...], **options: Any) -> int:
    """Train PLANS, one after the other, on as many ranks as each has workers: mpirun -n 8 execute plan.json."""
    return Execution(ranks, plans, options).run()


@dataclass(frozen=True, slots=True)
class Execution:
    """One run of the command on one rank."""

    ranks: Cluster
    paths: tuple[Path, ...]
    options: Mapping[str, Any]

    def run(self) -> int:
        """Check everything, then train plan after plan; return the exit status (collective)."""
        xp = agreed(self.ranks, self._array_module)
        plans = self.ranks.tell(self._on_first_rank(lambda: [self._plan(path) for path in self.paths]))
        data_sets = agreed(self.ranks, lambda: [self._data(xp, *one) for one in zip(self.paths, plans, strict=True)])
        request = self._request(xp)
        threads = self.options["threads"] or max(1, self.ranks.cores // self.ranks.ranks_on_host)
        settings = self._settings(xp, threads)
        reports: list[Report] = []
        with threadpool_limits(threads), np.errstate(all="ignore"):
            for path, plan, data in zip(self.paths, plans, data_sets, strict=True):
                programs = self._on_first_rank(partial(self._lowered, plan))
                part = self.ranks.deal(None if programs is None else [programs.part(r) for r in range(plan.workers)])
                with progress(path.name, request.steps if self.ranks.rank == 0 else 0) as advance:
                    findings = Job(part, self.ranks, data, request).run(advance)
                if programs is not None:
                    reports.append(report(programs, path, findings, settings, tasks=self.options["tasks"]))
                    self._tell(reports, programs, findings)
        failed = [found for found in reports if found.check is not None and not found.check.passed]
        return self.ranks.share(JOB_FAILED if failed else 0)[0]

    def _on_first_rank(self, prepare: Callable[[], T]) -> T | None:
        """Run `prepare` on rank 0, None elsewhere; its failure is every rank's.

        Reading and lowering is for all workers at once, so that every rank doing it would do k times the work.
        """
        return agreed(self.ranks, lambda: prepare() if self.ranks.rank == 0 else None)

    def _array_module(self) -> ModuleType:
        """Check what can be checked before any plan is read, and choose this rank's array module and device."""
        check_written((self.options["json_path"], self.options["trace_path"]), self.paths)
        try:
            xp = array_module(self.options["backend"])
        except BackendError as error:
            raise click.UsageError(str(error)) from error
        if xp is not np:
            xp.cuda.Device(self.ranks.host_rank % xp.cuda.runtime.getDeviceCount()).use()
        load_operators(self.options["operator_files"])
        return xp

    def _plan(self, path: Path) -> Plan:
        plan = load_plan(path)
        require_size(str(path), plan.workers, self.ranks.size, os.environ)
        if self.options["check"] and not plan.graph.updates:
            raise click.UsageError(f"{path}: --check compares updated tensors, and the graph updates none")
        return plan

    def _data(self, xp: ModuleType, path: Path, plan: Plan) -> DataSet:
        try:
            require_dtypes(xp, (tensor.dtype for tensor in plan.graph.tensors.values()))
            data = DATA_SETS[self.options["data"]](plan.graph, plan.seed)
        except (BackendError, DataError) as error:
            raise click.UsageError(f"{path}: {error}") from error
        if self.options["evaluate"] and not isinstance(data, Digits):
            raise click.UsageError(
                f"--eval needs held-out images: expected --data digits, found {self.options['data']}"
            )
        if self.options["evaluate"] and classification(plan.graph) is None:
            raise click.UsageError(f"{path}: --eval expected metrics logits [N, classes] and labels [N], found others")
        return data

    def _lowered(self, plan: Plan) -> Programs:
        return lowered(plan, self.options["prefetch"], self.options["evaluate"])

    def _request(self, xp: ModuleType) -> Request:
        return Request(
            steps=self.options["steps"],
            xp=xp,
            transport=self.options["transport"],
            evaluate=self.options["evaluate"],
            check=self.options["check"],
            trace=self.options["trace_path"] is not None or self.options["tasks"],
            measure_memory=self.options["memory"],
        )

    def _settings(self, xp: ModuleType, threads: int) -> dict[str, Setting]:
        chosen: dict[str, Setting] = {name: self.options[name] for name in ("transport", "prefetch", "data")}
        return {"backend": xp.__name__, **chosen, "threads": threads, "hardware": hardware(xp, self.ranks)}

    def _tell(self, reports: Sequence[Report], programs: Programs, findings: Findings) -> None:
        """Print and write the last report (rank 0); those before it are written again with it."""
        last = reports[-1]
        stdout().print(*display.tables(last), sep="\n")
        sys.stdout.flush()
        if last.check is not None and not last.check.passed:
            print(f"error: {failed_check(last)}", file=sys.stderr, flush=True)
        if self.options["json_path"] is not None:
            write_reports(self.options["json_path"], *reports)
        if self.options["trace_path"] is not None:
            one_clock = self.ranks.ranks_on_host == self.ranks.size
            trace(programs.training, findings, one_clock).write(self.options["trace_path"])


def failed_check(found: Report) -> str:
    """Say how many tensors differ from one worker's, and which does most."""
    if found.check is None:
        raise ValueError(f"{found.plan}: expected a check, found none")
    worst = found.check.worst_difference
    return (
        f"{found.plan}: {found.check.failed} of {found.check.tensors} tensors differ from one worker's, most of all "
        f"{found.check.worst_tensor} by {'what is not finite' if worst is None else f'{worst:.3g}'} of its largest "
        f"value, where rounding explains {found.check.tolerance:.3g}"
    )


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command on every rank of the job."""
    command_main(execute, args)
