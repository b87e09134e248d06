"""`simulate --sweep`: one simulation for every combination of some options' values, in processes side by side."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import msgspec
from click.core import ParameterSource
from rich.table import Table

from planner.extensions import load_operators
from planner.failures import describe_failure
from planner.report.schema import Report
from planner.report.tables import busiest, fullest
from simulator.projection.stack import OURS
from tensor_partitioner.commands.console import collect_seldom
from tensor_partitioner.commands.projecting import named, priced, stack_of, step_data
from tensor_partitioner.commands.simulation_request import SimulationRequest
from tensor_partitioner.display import exact_bytes, number, percent, quantity, seconds, table
from topologies import TopologyWarning

FORMAT = "sweep/1"

NOT_SWEPT = (
    *("sweep", "ways", "shares", "ties", "untie", "operator_files"),
    *("output", "json_path", "tasks", "trace_path", "plot_folder"),
)
"""Options that are of the whole command: that name files, or have commas in their values."""

Combination = tuple[dict[str, str], SimulationRequest]
"""Values by option, as they were written, and what they ask for."""

COLUMNS = ("per step", "exposed", "samples/s", "data parallel", "bytes", "fullest memory", "busiest")


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One combination of values, as they were written, by option; and its step, or why there is none.

    That is a report of what was simulated, or what was `priced` for a framework's stack, as `step_data` says it.
    """

    values: dict[str, str]
    report: Report | None = None
    priced: dict[str, Any] | None = None
    error: str | None = None

    @property
    def is_fine(self) -> bool:
        """True if it could be simulated and fits in memory."""
        if self.priced is not None:
            return bool(self.priced["fits"])
        return self.report is not None and not self.report.overfull


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """Every combination of the values swept, in the order of the command line, the last option's changing fastest."""

    cells: tuple[Cell, ...]
    format: str = FORMAT


def read_sweeps(
    _context: click.Context, _option: click.Parameter, texts: Sequence[str]
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Read what is swept, as in `batch=8,16,32`: an option's name and its values."""
    sweeps: dict[str, tuple[str, ...]] = {}
    for text in texts:
        name, _, values = text.partition("=")
        if not name or not all(values.split(",")):
            raise click.BadParameter(f"expected an option and its values, as in batch=8,16,32, found {text!r}")
        if name in sweeps:
            raise click.BadParameter(f"expected every option once, found {name} again")
        sweeps[name] = tuple(values.split(","))
    return tuple(sweeps.items())


def requests(context: click.Context, allowed: Sequence[str] | None) -> Iterator[Combination]:
    """Yield every combination of what a command's `--sweep` asks for; UsageError for what cannot be swept.

    `allowed` are the arguments that a saved plan leaves open, None where the plan is yet to be found.
    """
    swept = context.params["sweep"]
    parameters = [_parameter(context, name, allowed) for name, _ in swept]
    for texts in itertools.product(*(values for _, values in swept)):
        given = zip(parameters, texts, strict=True)
        options = context.params | {parameter.name: parameter.process_value(context, text) for parameter, text in given}
        del options["sweep"]
        source = options.pop("source")
        yield dict(zip((name for name, _ in swept), texts, strict=True)), SimulationRequest(source, options)


def _parameter(context: click.Context, name: str, allowed: Sequence[str] | None) -> click.Parameter:
    known = {
        option.lstrip("-"): parameter
        for parameter in context.command.params
        if isinstance(parameter, click.Option) and parameter.name not in NOT_SWEPT
        if allowed is None or parameter.name in allowed
        for option in parameter.opts
    }
    if name not in known:
        raise click.UsageError(f"--sweep {name}: expected one of {', '.join(sorted(known))}")
    if context.get_parameter_source(known[name].name or "") == ParameterSource.COMMANDLINE:
        raise click.UsageError(f"--sweep {name}: expected its values here alone, found --{name} besides")
    return known[name]


def run(combinations: Sequence[Combination], operators: Sequence[Path], done: Callable[[], None]) -> Sweep:
    """Simulate every request, as many side by side as there are cores; `done` is called after each."""
    processes = min(len(combinations), len(os.sched_getaffinity(0)))
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, fresh, _prepare, (tuple(operators),)) as pool:
        futures = [pool.submit(_cell, values, request) for values, request in combinations]
        for _ in as_completed(futures):
            done()
    pairs = zip(combinations, futures, strict=True)
    return Sweep(cells=tuple(_result(values, future) for (values, _), future in pairs))


def _prepare(operators: Sequence[Path]) -> None:
    """Make a process ready: it ends with Ctrl-C without a word, and knows the operators of the command."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    warnings.simplefilter("ignore", TopologyWarning)  # said once, by the command
    collect_seldom()
    load_operators(operators)


def _cell(values: dict[str, str], request: SimulationRequest) -> Cell:
    """Simulate in a process of its own, from which an error comes back as what is said of it."""
    try:
        options = named(request.source, request.options)
        stack, parallel = stack_of(request.source, options), options["parallel"]
        if stack == OURS:
            return Cell(values=values, report=replace(request, options=options).run()[1])
        step = priced(request.source, options, stack)
        return Cell(values=values, priced=step_data(request.source, parallel, options, step, stack))
    except Exception as error:
        return Cell(values=values, error=describe_failure(error)[0])


def _result(values: dict[str, str], future: Future[Cell]) -> Cell:
    """Return the cell, or the error of a process that was killed."""
    error = future.exception()
    return future.result() if error is None else Cell(values=values, error=describe_failure(error)[0])


def sweep_table(sweep: Sweep, title: str) -> Table:
    """Show a row for every cell: what it takes, or why it could not be simulated."""
    names = list(sweep.cells[0].values)
    rows = [[*cell.values.values(), *_figures(cell), _verdict(cell)] for cell in sweep.cells]
    result = table(title, [*names, *COLUMNS, "verdict"], rows)
    result.columns[-1].justify = "left"
    return result


def _figures(cell: Cell) -> list[str]:
    report, step = cell.report, cell.priced
    if step is not None:
        return [
            seconds(step["seconds"]),
            "-",
            number(step["samples_per_s"]),
            "-",
            "-",
            quantity(step["needed_bytes"], "B"),
            "-",
        ]
    if report is None:
        return ["-"] * len(COLUMNS)
    beside, device, busy = report.data_parallel, fullest(report), busiest(report)
    return [
        seconds(report.seconds_per_step),
        percent(report.communication_share),
        "-" if report.samples_per_s is None else number(report.samples_per_s),
        "-" if beside is None else "not possible" if beside.refused else seconds(beside.seconds_per_step),
        exact_bytes(report.total_bytes),
        "-" if device is None else quantity(device.peak_bytes, "B"),
        "-" if busy is None else f"{busy[0]}, {percent(busy[1])}",
    ]


def _verdict(cell: Cell) -> str:
    if cell.priced is not None:
        return "fits" if cell.is_fine else "OUT OF MEMORY"
    if cell.report is None:
        return f"error: {cell.error}"
    return f"OUT OF MEMORY on {', '.join(cell.report.overfull)}" if cell.report.overfull else "fits"
