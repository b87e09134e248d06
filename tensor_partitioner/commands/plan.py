"""The command `plan`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from planner.errors import GraphError
from planner.export.targets import TARGETS, target_named
from planner.extensions import load_operators
from planner.failures import JobError
from planner.files import check_written, write_file, write_json
from planner.graph.ir import Graph
from planner.model_source import function_of, source_files
from planner.models import model_options
from planner.plans.plan import Plan
from planner.plans.plan_json import load_plan
from planner.report import summary
from planner.search import SEARCHERS
from planner.search.solver.limits import Tuning
from tensor_partitioner import display
from tensor_partitioner.commands.console import WRITTEN, collect_seldom, command_errors, operators_option, stdout
from tensor_partitioner.commands.planning_options import (
    MODEL_HELP,
    given_options,
    is_saved_plan,
    plan_model,
    planning_options,
    refuse_others,
    with_model_options,
)
from tensor_partitioner.display import Shown

if TYPE_CHECKING:
    from planner.explanations.difference import PlanDifference
    from planner.export.exported import Exported

DIFFERENCE, EXPLANATION, EXPORTED = (
    "planner.explanations.difference",
    "planner.explanations.explanation",
    "planner.export.exported",
)
PROCESS, VERIFICATION = "executor.process.bootstrap", "executor.torch.verification"
"""Modules that few calls need: they are imported by those."""

SHOWING = ("diff", "explain", "json_file", "operator_files")
"""The options that have a meaning where nothing is searched."""

EXPORT_HELP = f"Write a saved plan for another engine instead, to -o: {', '.join(TARGETS)}, or one of --operators."
VERIFY_HELP = """Run steps of PyTorch's module and of its graph instead of planning, and compare. A module that is
planned is compared as well, if that takes less than ten seconds, unless --no-verify is given."""
MOST_SECONDS = 10.0
"""How long a module may take to be verified unasked."""

RIVALS = tuple(name for name, searcher in SEARCHERS.items() if searcher.rival_under)

HELP = f"""Find how to split the training step of MODEL over workers so that few bytes move, or little time is taken.

{MODEL_HELP} A saved plan.json is shown as it is, without searching. An option of models is for those families that
have it, and for functions with a parameter of its name.

Besides a search of little movement that does not prove its plan, {", ".join(RIVALS)} is tried in up to
{Tuning().rival_steps} steps, where a single one of them may move less. --search NAME tries one by itself."""


@command_errors
@with_model_options
@click.command("plan", context_settings={"show_default": True}, help=HELP)
@click.argument("model", required=False)
@planning_options
@click.option("--topo", help="The machine of --objective time and --memory: a name or a YAML file.")
@operators_option
@click.option("--json", "json_file", type=WRITTEN, help="Write the table here.")
@click.option("--explain", is_flag=True, help="Say where the bytes go and what was rejected, at length.")
@click.option("--verify/--no-verify", default=None, help=VERIFY_HELP)
@click.option("--export", metavar="NAME", help=EXPORT_HELP)
@click.option("--diff", type=(Path, Path), metavar="PLAN PLAN", help="Compare two saved plans instead.")
@click.pass_context
def main(context: click.Context, /, model: str | None, diff: tuple[Path, Path] | None, **options: Any) -> None:
    """Run the command; `HELP` says what it does."""
    collect_seldom()
    read = diff or (source_files(model) if model else ())
    check_written((options["output"], options["json_file"]), (*read, *options["operator_files"]))
    load_operators(options["operator_files"])
    shown: list[Shown]
    plan: Plan | None = None
    if diff is not None:
        refuse_others(context, "--diff compares saved plans", allowed=SHOWING)
        compared = _compared(diff)
        record, shown = msgspec.to_builtins(compared), [compared]
    elif model is None:
        raise click.UsageError("Missing argument 'MODEL'.")
    elif options["verify"]:
        _verify(context, model, options)
    elif options["export"]:
        exported = _exported(context, model, options)
        record, shown = exported.to_data(), [exported]
    else:
        plan = _plan(context, model, options)
        record, shown = summary.to_data(plan), [plan]
        if options["explain"]:
            explained = import_module(EXPLANATION).explain(plan)
            record, shown = record | msgspec.to_builtins(explained), [plan, explained]
    if options["json_file"] is not None:
        write_json(options["json_file"], record)
    stdout().print(*(table for part in shown for table in display.tables(part)), sep="\n")
    if plan is not None and options["verify"] is None and _is_imported(plan, str(model)):
        stdout().print(_comparison(plan.graph, str(model), options), soft_wrap=True)
    if options["export"] and options["output"] is not None:
        write_file(options["output"], exported.source(options["output"].stem).encode())


def _exported(context: click.Context, model: str, options: dict[str, Any]) -> Exported:
    """Return what a saved plan is for another engine; where nothing is to be written that is shown alone."""
    target_named(options["export"])
    if not is_saved_plan(model):
        raise click.UsageError(f"--export takes a saved plan, found {model}: save one first, with plan {model} -o FILE")
    refuse_others(context, "--export searches nothing", allowed=("model", "export", "output", *SHOWING[2:]))
    exported: Exported = import_module(EXPORTED).export(load_plan(model), options["export"])
    return exported


def _verify(context: click.Context, model: str, options: dict[str, Any]) -> None:
    """Run steps beside PyTorch, by what the entry point gave to run it, and end."""
    refuse_others(context, "--verify plans nothing", allowed=("model", "verify", "operator_files", *model_options()))
    import_module(PROCESS).settle_process()
    verification = import_module(VERIFICATION).verify(function_of(model, **given_options(options)), model)
    stdout().print(*display.tables(verification), sep="\n")
    if verification.failure:
        raise JobError(verification.failure)
    context.exit(0)


def _is_imported(plan: Plan, model: str) -> bool:
    return bool(plan.graph.entries) and not is_saved_plan(model)


def _comparison(graph: Graph, model: str, options: dict[str, Any]) -> str:
    """Compare an imported module with its graph where that takes little time; return one line of what came of it."""
    verification = import_module(VERIFICATION)
    if (seconds := verification.estimated_seconds(graph)) > MOST_SECONDS:
        return f"not compared with PyTorch, as that may take {seconds:.0f} s: --verify does"
    try:
        compared = verification.verify(function_of(model, **given_options(options)), model)
    except GraphError as error:
        return f"not compared with PyTorch: {error}"
    if compared.failure:
        raise JobError(compared.failure)
    count, dtype = len(compared.compared), compared.dtype
    return f"compared with PyTorch: {count} tensors are equal after {verification.STEPS} steps in {dtype}"


def _compared(paths: tuple[Path, Path]) -> PlanDifference:
    names = paths[0].name, paths[1].name
    names = names if names[0] != names[1] else (str(paths[0]), str(paths[1]))
    compared: PlanDifference = import_module(DIFFERENCE).diff(*paths, names)
    return compared


def _plan(context: click.Context, model: str, options: dict[str, Any]) -> Plan:
    """Load a saved plan, or search one and save it."""
    if not is_saved_plan(model):
        return plan_model(model, options, options["topo"], bound=options["explain"])
    refuse_others(context, f"{model} is a saved plan, which is not searched again", allowed=("model", *SHOWING))
    return load_plan(model)
