"""Commands as functions: every option of a command is an argument of the same name, with the same errors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

import planner
from planner.errors import InputError
from planner.failures import one_line
from tensor_partitioner.display import nearest
from topologies import Machine

if TYPE_CHECKING:
    from tensor_partitioner.decision.record import Decision
    from tensor_partitioner.decision.varied import Varied

COMMANDS = "tensor_partitioner.commands"
OBJECT = "object"
"""Stands for an object that is not text where a command's arguments are read."""

FUNCTIONS = {
    "vary": "decide_each(model, topo, vary=...)",
    "price_per_hour": "decide_each(model, topo, vary=..., price_per_hour=...)",
    "explain": "explain(plan)",
    "why_not": "why_not(plan, pin, workers=workers)",
    "diff": "diff(first, second)",
}
"""Functions in place of options that ask a command for something else."""


def decide(model: str | planner.Graph, topo: str | Path | Machine | None = None, **options: object) -> Decision:
    """Decide how to train a model on all devices of a machine, as the command `decide` does.

    `options` are those of the command: `batch=64`, `budget="10s"` or seconds, `pin=["tp=4"]`, `stack`, `engine`,
    `measured`, `page="page.html"`, ... Raises InputError or TopologyError with the command's message.

    >>> import tensor_partitioner as tp
    >>> decision = tp.decide("gpt2", topo="hgx-h100", batch=64, budget="60s", pin="tp=1")
    >>> decision.best.fits, decision.search.gap
    (True, 0.0)
    """
    decision: Decision = _called("decide", "decided", options, model, topo)
    return decision


def decide_each(model: str, topo: str | None = None, **options: object) -> tuple[Varied, ...]:
    """Decide for every combination of values, as `decide --vary` does.

    `vary` is text such as "batch=64,128", or several; `options` are those of the command. Raises as `decide`.

    >>> import tensor_partitioner as tp
    >>> [cell.values for cell in tp.decide_each("mlp-2-64", "hgx-h100", vary="batch=16,32")]
    [{'batch': '16'}, {'batch': '32'}]
    """
    if not isinstance(topo, str | None) or "vary" not in options:
        raise InputError("decide_each: expected a machine as text, and vary, as in vary='batch=64,128'")
    cells: tuple[Varied, ...] = _called("decide", "varied", options, model, topo)
    return cells


def plan(model: str | planner.Graph, workers: int | None = None, **options: Any) -> planner.Plan:
    """Return a plan of a graph or a model, as the command `plan` does; `planner.plan` describes the options.

    Raises InputError or TopologyError with the command's message.

    >>> import tensor_partitioner as tp
    >>> tp.plan("mlp-2-16", batch=8, workers=4).total_bytes, tp.plan(tp.model("mlp-2-16", batch=8), 4).total_bytes
    (2200, 2200)
    """
    if isinstance(model, planner.Graph):
        known = import_module("planner.planning").OPTIONS
        names = {option.flag.lstrip("-"): name for name, option in known.items()} | {"topo": "machine"}
        return planner.plan(model, workers, **{names.get(name, name): value for name, value in options.items()})
    result: planner.Plan = _called("plan", "planned", {"workers": workers, **options}, model)
    return result


def simulate(source: planner.Plan | str | Path, topo: str | Machine | None = None, **options: Any) -> Any:
    """Predict a step of a plan, a plan.json or a model, as the command `simulate` does.

    Returns a Report of a plan simulated message by message, which is the default, or a Projection under a framework's
    stack. `options` are those of the command:
    `parallel="tp=2,dp=4"`, `stack`, `prefetch`, ... Raises InputError or TopologyError with the command's message.

    >>> import tensor_partitioner as tp
    >>> tp.simulate("gpt2", topo="hgx-h100", parallel="dp=8,zero=3", batch=64).fits
    True
    """
    if not isinstance(source, planner.Plan):
        return _called("simulate", "predicted", options, str(source) if isinstance(source, Path) else source, topo)[-1]
    if options.keys() <= {"prefetch", "overlap", "collectives"}:
        return import_module("simulator").simulate(source, topo, **options)
    with TemporaryDirectory() as folder:
        file = Path(folder, "plan.json")
        source.save(file)
        try:
            return simulate(file, topo, **options)
        except InputError as error:
            raise type(error)(str(error).replace(str(file), "the plan")) from error


def _called(name: str, function: str, given: Mapping[str, object], source: object, topo: object = None) -> Any:
    """Call a function of a command with its context, and options that are read from Python values.

    Raises InputError with the command's message.
    """
    if not isinstance(source, str if name == "simulate" else str | planner.Graph):
        kinds = "plan, a name or a file" if name == "simulate" else "name, a file or a graph"
        raise InputError(f"{name}: expected a {kinds}, found {source!r:.80}")
    module = import_module(f"{COMMANDS}.{name}")
    command: click.Command = module.main.command
    flags = {parameter.name or "": parameter for parameter in command.params}
    flags |= {flag.lstrip("-").replace("-", "_"): option for option in command.params for flag in option.opts}
    words = [] if topo is None else [f"--topo={OBJECT if isinstance(topo, Machine) else topo}"]
    for option, value in given.items():
        if option in FUNCTIONS and function != "varied":
            raise InputError(f"{name}: {option} is a function in Python: tensor_partitioner.{FUNCTIONS[option]}")
        if option not in flags:
            raise InputError(f"{name}: expected an option of the command, found {option!r}{nearest(option, flags)}")
        words += [] if value is None else _words(flags[option], value)
    try:
        context = command.make_context(
            name, [*words, "--", OBJECT if isinstance(source, planner.Graph) else str(source)]
        )
        context.params |= {"topo": topo} if isinstance(topo, Machine) else {}
        context.params |= {command.params[0].name or "": source} if isinstance(source, planner.Graph) else {}
        return getattr(module, function)(context, **context.params)
    except click.ClickException as error:
        raise InputError(one_line(error.format_message())) from error


def _words(option: click.Parameter, value: Any) -> Iterator[str]:
    """Yield a Python value as it is typed: a flag for a boolean, and a repeated option for each of several values."""
    if isinstance(option, click.Option) and option.is_flag:
        yield from option.opts[:1] if value else option.secondary_opts[:1]
        return
    is_repeated = isinstance(option, click.Option) and option.multiple and not isinstance(value, str)
    if isinstance(value, planner.Graph | planner.Plan) or (is_repeated and not isinstance(value, Iterable)):
        raise InputError(f"{option.name}: expected text{', or a list of several' * is_repeated}, found {value!r:.80}")
    for part in value if is_repeated else (value,):
        yield from (option.opts[-1], ",".join(map(str, part)) if isinstance(part, tuple | list) else str(part))
