"""The command `plan`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import msgspec
from click.core import ParameterSource

import display
from display import Shown
from planner.errors import PlanError
from planner.explanations import difference, explanation
from planner.extensions import load_operators, operators_option
from planner.files import check_written, write_file
from planner.model_source import model as load_model
from planner.model_source import source_files
from planner.models import FAMILIES, model_options
from planner.planning import plan as searched
from planner.plans.plan import Plan
from planner.plans.plan_json import is_plan, load_plan
from planner.report import summary
from planner.report.console import collect_seldom, command_errors, stdout
from planner.search import OBJECTIVES, PLACEMENTS, SEARCHERS, SearchOptions, Ties
from planner.search.factorisations import MOST_WORKERS_FACTORED
from planner.search.memory import parse_memory
from planner.search.run import FAR
from planner.search.searchers import DEAR, MOST_STEPS, STEP_BY_STEP
from planner.search.space import SMALL_STATES

RULES = tuple(field.name for field in fields(Ties))
RULES_HELP = f"all, none, or rules among {', '.join(RULES)}"
DEFAULTS = SearchOptions()

SHOWING = ("diff", "explain", "json_file", "operator_files")
"""The options that have a meaning where nothing is searched."""

HELP = f"""Find how to split the training step of MODEL over workers so that few bytes move, or little time is taken.

MODEL is a name of the zoo ({", ".join(family.example for family in FAMILIES.values())}), a graph.json, or
path/to/file.py:function, a function that returns a Graph. A saved plan.json is shown as it is, without searching. An
option of models is for those families that have it, and for functions with a parameter of its name.

Besides a search that does not prove its plan, the papers' alternatives are tried in up to {MOST_STEPS} steps:
{", ".join(STEP_BY_STEP)} in the finest factorisation, unless in a single step they move over {FAR} times as much;
{", ".join(DEAR)} so too, of graphs of up to {SMALL_STATES} states in all. --search NAME tries one by itself."""

WORKERS_HELP = (
    f"Number of workers. Up to {MOST_WORKERS_FACTORED}, all factorisations are tried; beyond, prime factors and none."
)
TIES_HELP = f"Coarsening rules to apply: {RULES_HELP}.  [default: by searcher and the graph's size]"
UNTIE_HELP = "Coarsening rules to do without.  [default: none]"
WAYS_HELP = "Factors to split by, outermost first.  [default: the best]"
MEMORY_HELP = "What every worker must fit in, as in 11GiB; with --topo all that it takes there.  [default: no limit]"

WRITTEN = click.Path(path_type=Path, dir_okay=False)


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


def _of_the_model(command: click.Command) -> click.Command:
    """Give the command every option of the zoo's families; each says which families' default is which."""
    types = {"int": click.IntRange(1), "float": click.FLOAT, "str": click.STRING}
    for name, option in model_options().items():
        dashed = name.replace("_", "-")
        switch = option.kind == "bool"
        flag = f"--{dashed}/--no-{dashed}" if switch else f"--{dashed}"
        kind = click.Choice(option.choices) if option.choices else types.get(option.kind)
        shown = click.Option([flag], type=None if switch else kind, default=None, help=option.help)
        command.params.append(shown)
    return command


@command_errors
@_of_the_model
@click.command("plan", context_settings={"show_default": True}, help=HELP)
@click.argument("model", required=False)
@click.option("--workers", type=click.IntRange(1), help=WORKERS_HELP)
@click.option("--ways", metavar="K1,K2,...", callback=read_ways, help=WAYS_HELP)
@click.option("--search", "searcher", default=DEFAULTS.searcher, help=f"One of {', '.join(SEARCHERS)}.")
@click.option("--placements", default=DEFAULTS.placements, help=f"What may be chosen: {'; '.join(PLACEMENTS)}.")
@click.option("--ties", metavar="RULE,...", callback=read_rules, help=TIES_HELP)
@click.option("--untie", metavar="RULE,...", callback=read_rules, help=UNTIE_HELP)
@click.option("--objective", type=click.Choice(OBJECTIVES), default=DEFAULTS.objective, help="Of which little.")
@click.option("--topo", help="The machine of --objective time and --memory: a name or a YAML file.")
@click.option("--memory", metavar="BYTES", callback=read_memory, help=MEMORY_HELP)
@click.option("--seed", type=click.IntRange(0), default=DEFAULTS.seed, help="Of weights and random data.")
@operators_option
@click.option("-o", "output", type=WRITTEN, help="Write the plan here.")
@click.option("--json", "json_file", type=WRITTEN, help="Write the table here.")
@click.option("--explain", is_flag=True, help="Say where the bytes go and what was rejected, at length.")
@click.option("--diff", type=(Path, Path), metavar="PLAN PLAN", help="Compare two saved plans instead.")
@click.pass_context
def main(context: click.Context, /, model: str | None, diff: tuple[Path, Path] | None, **options: Any) -> None:
    """Run the command; `HELP` says what it does."""
    collect_seldom()
    read = diff or (source_files(model) if model else ())
    check_written((options["output"], options["json_file"]), (*read, *options["operator_files"]))
    load_operators(options["operator_files"])
    shown: list[Shown]
    if diff is not None:
        _refuse_others(context, "--diff compares saved plans", allowed=SHOWING)
        found = _compared(diff)
        record, shown = difference.to_data(found), [found]
    elif model is None:
        raise click.UsageError("Missing argument 'MODEL'.")
    else:
        plan = _plan(context, model, options)
        record, shown = summary.to_data(plan), [plan]
        if options["explain"]:
            explained = explanation.explain(plan)
            record, shown = record | explanation.to_data(explained), [plan, explained]
    if options["json_file"] is not None:
        write_file(options["json_file"], msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")
    stdout().print(*(table for one in shown for table in display.tables(one)), sep="\n")


def _refuse_others(context: click.Context, reason: str, allowed: Sequence[str]) -> None:
    """Raise an error where an option is given that has no meaning here."""
    for parameter in context.command.params:
        given = context.get_parameter_source(parameter.name or "") == ParameterSource.COMMANDLINE
        if given and parameter.name not in allowed:
            raise click.UsageError(f"{reason}: expected no {parameter.opts[-1]}")


def _compared(paths: tuple[Path, Path]) -> difference.Difference:
    names = paths[0].name, paths[1].name
    names = names if names[0] != names[1] else (str(paths[0]), str(paths[1]))
    return difference.diff(*paths, names)


def _plan(context: click.Context, model: str, options: dict[str, Any]) -> Plan:
    """Load a saved plan, or search one and save it."""
    if model.endswith(".json") and is_plan(model):
        _refuse_others(context, f"{model} is a saved plan, which is not searched again", allowed=("model", *SHOWING))
        return load_plan(model)
    given = {name: options[name] for name in model_options() if options.get(name) is not None}
    asked = {name: options[name] for name in ("searcher", "placements", "objective", "memory", "seed")}
    ties = None if options["ties"] is None else Ties.only(options["ties"])
    asked |= {"ties": ties, "untie": options["untie"] or (), "ways": options["ways"] or ()}
    graph = load_model(model, **given)
    plan = searched(graph, options["workers"], machine=options["topo"], bound=options["explain"], **asked)
    if options["output"] is not None:
        plan.save(options["output"])
    return plan
