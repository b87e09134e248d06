"""What commands that plan take: of what graph, over how many workers, and how a plan is sought."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from planner.errors import PlanError
from planner.model_source import model as load_model
from planner.models import FAMILIES, model_options
from planner.planning import DEVICES
from planner.planning import plan as searched
from planner.plans.plan import Plan
from planner.plans.plan_json import is_plan
from planner.search import OBJECTIVES, PLACEMENTS, SEARCHERS, SearchOptions, Ties
from planner.search.factorisations import MOST_WORKERS_FACTORED
from planner.search.memory import parse_memory

F = TypeVar("F", bound=Callable[..., Any])

RULES = tuple(field.name for field in fields(Ties))
RULES_HELP = f"all, none, or rules among {', '.join(RULES)}"
DEFAULTS = SearchOptions()

MODEL_HELP = f"""MODEL is a name of the zoo ({", ".join(family.example for family in FAMILIES.values())}), a graph.json,
or path/to/file.py:function, a function that returns a Graph, or a module of PyTorch with inputs (docs/pytorch.md)."""

WORKERS_HELP = (
    f"Number of workers. Up to {MOST_WORKERS_FACTORED}, all factorisations are tried; beyond, prime factors and none."
)
TIES_HELP = f"Coarsening rules to apply: {RULES_HELP}.  [default: by searcher and the graph's size]"
UNTIE_HELP = "Coarsening rules to do without.  [default: none]"
OPAQUE_HELP = "Operators of PyTorch that the graph has none for run whole, by calling PyTorch."
SHARES_HELP = "What share of everything each worker is to have, as in 2,2,1,1.  [default: equal shares]"
WAYS_HELP = "Factors to split by, outermost first.  [default: the best]"
MEMORY_HELP = (
    "What every worker must fit in, as in 11GiB; with --topo all that it takes there, and 'devices' is its own "
    "device's.  [default: no limit]"
)
WRITTEN = click.Path(path_type=Path, dir_okay=False)


def _read_numbers(text: str | None, least: int, example: str) -> tuple[int, ...] | None:
    if text is None:
        return None
    parts = text.split(",")
    if not all(re.fullmatch(r" *[0-9]{1,9} *", part) and int(part) >= least for part in parts):
        raise click.BadParameter(f"expected whole numbers of at least {least}, such as {example}, found {text!r}")
    return tuple(map(int, parts))


def read_ways(_context: click.Context, _option: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    """Read factors of the number of workers, as in `4,2`; each must be at least 2."""
    return _read_numbers(text, 2, "4,2")


def read_shares(_context: click.Context, _option: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    """Read every worker's share, as in `2,2,1,1`; each must be at least 1."""
    return _read_numbers(text, 1, "2,2,1,1")


def read_rules(_context: click.Context, _option: click.Parameter, text: str | None) -> tuple[str, ...] | None:
    """Read names of coarsening rules, as in `elementwise,updates`, or `all` or `none`; None where none are given."""
    if text is None:
        return None
    rules = {"all": RULES, "none": ()}.get(text.strip(), tuple(rule.strip() for rule in text.split(",")))
    if unknown := [rule for rule in rules if rule not in RULES]:
        raise click.BadParameter(f"expected {RULES_HELP}, found {', '.join(map(repr, unknown))}")
    return rules


def read_memory(_context: click.Context, _option: click.Parameter, text: str | None) -> int | str | None:
    """Read a number of bytes, as in `11GiB`, or `devices`."""
    try:
        return text if text in (None, DEVICES) else parse_memory(text)
    except PlanError as error:
        raise click.BadParameter(str(error)) from error


SEARCHING = ("ways", "shares", "searcher", "placements", "ties", "untie", "objective", "memory", "seed")
"""The arguments that say how a plan is sought."""

_SEARCH_OPTIONS = (
    click.option("--workers", type=click.IntRange(1), help=WORKERS_HELP),
    click.option("--ways", metavar="K1,K2,...", callback=read_ways, help=WAYS_HELP),
    click.option("--shares", metavar="S1,S2,...", callback=read_shares, help=SHARES_HELP),
    click.option("--search", "searcher", default=DEFAULTS.searcher, help=f"One of {', '.join(SEARCHERS)}."),
    click.option("--placements", default=DEFAULTS.placements, help=f"What may be chosen: {'; '.join(PLACEMENTS)}."),
    click.option("--ties", metavar="RULE,...", callback=read_rules, help=TIES_HELP),
    click.option("--untie", metavar="RULE,...", callback=read_rules, help=UNTIE_HELP),
    click.option("--objective", type=click.Choice(OBJECTIVES), default=DEFAULTS.objective, help="Of which little."),
    click.option("--memory", metavar="BYTES", callback=read_memory, help=MEMORY_HELP),
    click.option("--opaque-unknown", is_flag=True, help=OPAQUE_HELP),
    click.option("--seed", type=click.IntRange(0), default=DEFAULTS.seed, help="Of weights and random data."),
    click.option("-o", "output", type=WRITTEN, help="Write the plan here."),
)


def _model_options() -> list[click.Option]:
    """Return every option of the zoo's families; each says which families' default is which."""
    types = {"int": click.IntRange(1), "float": click.FLOAT, "str": click.STRING}
    found = []
    for name, option in model_options().items():
        dashed, switch = name.replace("_", "-"), option.kind == "bool"
        flag = f"--{dashed}/--no-{dashed}" if switch else f"--{dashed}"
        kind = click.Choice(option.choices) if option.choices else types.get(option.kind)
        found.append(click.Option([flag], type=None if switch else kind, default=None, help=option.help))
    return found


def planning_options(command: F) -> F:
    """Give a command the options of searching a plan."""
    for option in reversed(_SEARCH_OPTIONS):
        command = option(command)
    return command


def with_model_options(command: click.Command) -> click.Command:
    """Give the command every option of the zoo's families, last in its help."""
    command.params += _model_options()
    return command


def is_saved_plan(source: str) -> bool:
    """Whether what a command was given is a plan that was found before."""
    return Path(source).is_file() and is_plan(source)


def refuse_others(context: click.Context, reason: str, allowed: Sequence[str]) -> None:
    """Raise an error where an option is given that has no meaning here."""
    for parameter in context.command.params:
        given = context.get_parameter_source(parameter.name or "") == ParameterSource.COMMANDLINE
        if given and parameter.name not in allowed:
            raise click.UsageError(f"{reason}: expected no {parameter.opts[-1]}")


def given_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of models that a command was given."""
    return {name: options[name] for name in model_options() if options.get(name) is not None}


def planned(source: str, options: Mapping[str, Any], machine: str | None, *, bound: bool = False) -> Plan:
    """Search a plan of the graph that `source` names, as a command's options say, and save it where they say.

    `machine` is what time, or memory, is about; None where neither is.
    """
    asked = {name: options[name] for name in ("searcher", "placements", "objective", "memory", "seed")}
    ties = None if options["ties"] is None else Ties.only(options["ties"])
    asked |= {"ties": ties, "untie": options["untie"] or (), "ways": options["ways"] or ()}
    asked |= {"shares": options["shares"] or ()}
    graph = load_model(source, opaque_unknown=options["opaque_unknown"], **given_options(options))
    plan = searched(graph, options["workers"], machine=machine, bound=bound, **asked)
    if options["output"] is not None:
        plan.save(options["output"])
    return plan
