"""The command `plan`."""

from __future__ import annotations

import gc
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click
import msgspec
from click.core import ParameterSource
from rich.table import Table

from planner.errors import PlanError
from planner.extensions import load_operators, operators_option
from planner.files import check_written, write_file
from planner.graph.ir import Graph
from planner.graph.optimizers import OPTIMIZERS
from planner.model_source import load_model, source_files
from planner.models.options import FLOAT_DTYPES
from planner.plans.plan import Plan, check_workers
from planner.plans.plan_json import is_plan, load_plan, save_plan
from planner.report import difference, explain
from planner.report.console import command_errors, stdout
from planner.report.summary import describe, summary_table
from planner.search import OBJECTIVES, SEARCHERS, SearchOptions, Ties, search
from planner.search.factorisations import MOST_WORKERS_FACTORED, best_factors
from planner.search.gap import with_bound
from planner.search.memory import parse_memory
from topologies import Machine, load_topology

MODEL_OPTIONS = (
    "batch", "dtype", "optimizer", "lr", "momentum", "image", "channels", "classes", "unroll", "input_width",
    "batch_norm", "width", "backbone", "embedding", "sequence", "source_sequence", "vocabulary", "heads",
)  # fmt: skip

RULES = tuple(field.name for field in fields(Ties))
RULES_HELP = f"all, none, or rules among {', '.join(RULES)}"

SHOWING = ("diff", "explain", "json_file", "operator_files")
"""The options that have a meaning where nothing is searched."""

COLLECTED_EVERY = 200_000
"""Objects made between collections of garbage: there is hardly any, and looking for it took a sixth of the time."""

WORKERS_HELP = f"Number of workers. Up to {MOST_WORKERS_FACTORED}, all factorisations are tried; beyond, prime factors."


def read_ways(_context: click.Context, _option: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    """Read factors of the number of workers, as in `4,2`; each must be at least 2."""
    if text is None:
        return None
    parts = text.split(",")
    if not all(re.fullmatch(r" *0*([2-9]|[1-9][0-9]{1,8}) *", part) for part in parts):
        raise click.BadParameter(f"expected whole numbers of at least 2, such as 4,2, found {text!r}")
    return tuple(map(int, parts))


def read_rules(_context: click.Context, _option: click.Parameter, text: str | None) -> tuple[str, ...] | None:
    """Read names of coarsening rules, as in `elementwise,updates`, or `all` or `none`; None where none are given."""
    if text is None:
        return None
    rules = {"all": RULES, "none": ()}.get(text.strip(), tuple(rule.strip() for rule in text.split(",")))
    if unknown := [rule for rule in rules if rule not in RULES]:
        raise click.BadParameter(f"expected {RULES_HELP}, found {', '.join(map(repr, unknown))}")
    return rules


def read_memory(_context: click.Context, _option: click.Parameter, text: str | None) -> int | None:
    """Read a number of bytes, as in `11GiB`."""
    try:
        return None if text is None else parse_memory(text)
    except PlanError as error:
        raise click.BadParameter(str(error)) from error


@command_errors
@click.command("plan")
@click.argument("model", required=False)
@click.option("--batch", type=click.IntRange(1), help="Samples per iteration, over all workers.")
@click.option("--dtype", type=click.Choice(FLOAT_DTYPES))
@click.option("--optimizer", type=click.Choice(tuple(OPTIMIZERS)))
@click.option("--lr", type=float, help="Learning rate.")
@click.option("--momentum", type=float)
@click.option("--image", type=click.IntRange(1), help="Height and width of the images.")
@click.option("--channels", type=click.IntRange(1), help="Channels of the images.")
@click.option("--classes", type=click.IntRange(1), help="Classes to tell apart.")
@click.option("--unroll", type=click.IntRange(1), help="Timesteps of a recurrent model.")
@click.option("--input-width", type=click.IntRange(1), help="Width of a recurrent model's input.")
@click.option("--batch-norm/--no-batch-norm", default=None, help="Batch norm after each convolution.")
@click.option("--width", type=float, help="Factor of AlexNet's and VGG's widths.")
@click.option("--backbone", help="The zoo model below Classifier-C.")
@click.option("--embedding", type=click.IntRange(1), help="Width of Classifier-C's embedding.")
@click.option("--sequence", type=click.IntRange(1), help="Tokens in a transformer's sequence.")
@click.option("--source-sequence", type=click.IntRange(1), help="Tokens that an encoder reads.")
@click.option("--vocabulary", type=click.IntRange(1), help="A transformer's vocabulary.")
@click.option("--heads", type=click.IntRange(1), help="Attention heads; default: width / 64.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of weights and random data.")
@click.option("--workers", type=click.IntRange(1), help=WORKERS_HELP)
@click.option(
    "--ways", metavar="K1,K2,...", callback=read_ways, help="Factors to split by, outermost first; no others are tried."
)
@click.option("--search", "searcher", default=None, help=f"One of {', '.join(SEARCHERS)}.")
@click.option("--placements", default=None, help="What may be chosen: S; S,R; or S,R,P.")
@click.option("--ties", metavar="RULE,...", callback=read_rules, help=f"Coarsening rules to apply: {RULES_HELP}.")
@click.option("--untie", metavar="RULE,...", callback=read_rules, help="Coarsening rules to do without.")
@click.option("--objective", type=click.Choice(OBJECTIVES), default="bytes", show_default=True, help="Of which little.")
@click.option("--topo", help="The machine that --objective time is about: a YAML file or the name of one.")
@click.option("--memory", metavar="BYTES", callback=read_memory, help="What every worker's arena must fit in: 11GiB.")
@operators_option
@click.option("-o", "output", type=click.Path(path_type=Path, dir_okay=False), help="Write the plan here.")
@click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write the table here.")
@click.option("--explain", is_flag=True, help="Say where the bytes go and what was rejected, at length.")
@click.option("--diff", type=(Path, Path), metavar="PLAN PLAN", help="Compare two saved plans instead.")
@click.pass_context
def main(context: click.Context, /, model: str | None, diff: tuple[Path, Path] | None, **options: Any) -> None:
    """Find how to split the training step of MODEL over workers so that few bytes move, or little time is taken.

    MODEL is a name of the zoo (mlp-4-1024, cnn-5-64, wresnet-50-4, rnn-2-512), a graph.json, or
    path/to/file.py:function, a function without arguments that returns a Graph. A saved plan.json is
    shown as it is, without searching.
    """
    gc.set_threshold(COLLECTED_EVERY)
    read = diff or (source_files(model) if model else ())
    check_written((options["output"], options["json_file"]), (*read, *options["operator_files"]))
    load_operators(options["operator_files"])
    if diff is not None:
        _refuse_others(context, "--diff compares saved plans", allowed=SHOWING)
        record, shown = _compared(diff)
    elif model is None:
        raise click.UsageError("Missing argument 'MODEL'.")
    elif model.endswith(".json") and is_plan(model):
        _refuse_others(context, f"{model} is a saved plan, which is not searched again", allowed=("model", *SHOWING))
        record, shown = _shown(load_plan(model), at_length=options["explain"])
    else:
        plan = _searched(model, options)
        if options["output"] is not None:
            save_plan(plan, options["output"])
        record, shown = _shown(plan, at_length=options["explain"])
    if options["json_file"] is not None:
        write_file(options["json_file"], msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")
    for table in shown:
        stdout().print(table)


def _refuse_others(context: click.Context, reason: str, allowed: Sequence[str]) -> None:
    """Raise an error where an option is given that has no meaning here."""
    for parameter in context.command.params:
        given = context.get_parameter_source(parameter.name or "") == ParameterSource.COMMANDLINE
        if given and parameter.name not in allowed:
            raise click.UsageError(f"{reason}: expected no {parameter.opts[-1]}")


def _compared(paths: tuple[Path, Path]) -> tuple[dict[str, Any], Sequence[Table]]:
    one, other = map(load_plan, paths)
    names = paths[0].name, paths[1].name
    found = difference.difference((one, other), names if names[0] != names[1] else (str(paths[0]), str(paths[1])))
    return difference.to_data(found), difference.tables(found)


def _shown(plan: Plan, *, at_length: bool) -> tuple[dict[str, Any], Sequence[Table]]:
    record = describe(plan)
    if not at_length:
        return record, [summary_table(record)]
    found = explain.explain(plan)
    return record | explain.to_data(found), [summary_table(record), *explain.tables(found)]


def _searched(model: str, options: Mapping[str, Any]) -> Plan:
    _check_ways(options["workers"], options["ways"])
    machine = _machine(options["objective"], options["topo"])
    given = {name: options[name] for name in MODEL_OPTIONS if options[name] is not None}
    graph = load_model(model, given)
    chosen: dict[str, Any] = {"name": options["searcher"], "placements": options["placements"]}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    chosen |= {"objective": options["objective"], "machine": machine, "memory_bytes": options["memory"]}
    rules = options["ties"]
    ties = None if rules is None else Ties.only(rules)
    asked = SearchOptions(ways=(), seed=options["seed"], ties=ties, untie=options["untie"] or (), **chosen)
    plan = _search(graph, options["workers"], options["ways"], asked)
    plan = with_bound(plan, asked) if options["explain"] else plan
    return replace(plan, search={"model": model, **plan.search})


def _search(graph: Graph, workers: int | None, ways: tuple[int, ...] | None, options: SearchOptions) -> Plan:
    if ways is None:
        return best_factors(graph, workers or 1, options)
    return search(graph, replace(options, ways=ways))


def _machine(objective: str, topology: str | None) -> Machine | None:
    if objective == "time" and topology is None:
        raise click.UsageError("--objective time: expected --topo MACHINE, found none")
    if objective != "time" and topology is not None:
        raise click.UsageError(f"--topo {topology}: expected --objective time with it, found {objective}")
    return None if topology is None else load_topology(topology)


def _check_ways(workers: int | None, ways: tuple[int, ...] | None) -> None:
    if workers is None and ways is None:
        raise click.UsageError("expected --workers K or --ways K1,K2,..., found neither")
    if workers is not None:
        check_workers(workers)
    if workers is not None and ways is not None and math.prod(ways) != workers:
        raise click.UsageError(f"--ways {','.join(map(str, ways))} makes {math.prod(ways)} workers, not {workers}")
