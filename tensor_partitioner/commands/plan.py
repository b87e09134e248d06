"""The command `plan`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import click
import msgspec

import planner
from planner.errors import GraphError
from planner.failures import JobError
from planner.files import write_json
from planner.graph.ir import Graph
from planner.model_source import function_of, source_files
from planner.models import model_options
from planner.plans.check import MOST_WORKERS
from planner.plans.plan import Plan
from planner.plans.plan_json import load_plan
from planner.report import plan_facts
from planner.search import SEARCHERS
from planner.search.solver.limits import Tuning
from tensor_partitioner import display
from tensor_partitioner.commands.console import WRITTEN, Command, command_errors, operators_option, stdout
from tensor_partitioner.commands.planning_options import (
    MACHINES,
    MODEL_HELP,
    MODELS,
    SEARCHED,
    begin,
    given_options,
    is_saved_plan,
    plan_model,
    planning_options,
    read_request,
    refuse_others,
    with_model_options,
)
from tensor_partitioner.display import Shown
from topologies import load_topology

DECIDE = "tensor_partitioner.commands.decide"
PROJECTING = "tensor_partitioner.commands.projecting"
PROCESS, VERIFICATION = "executor.process.guard", "executor.torch.verification"
"""Modules that few calls need: they are imported by those."""

OF_DECISION = (
    *("model", "topo", "pins", "pins_file", "objective"),
    *("output", "verify", "json_file", "explain", "operator_files"),
)
"""The options that have a meaning where ways are compared by name, as decide does."""

DIVIDING = ("workers", "ways", "parallel", "memory", "shares")
"""The options that say over what a model is divided: without them --topo asks for the least time on its devices."""

LEAST_BYTES = "This plan moves the fewest bytes that were found; for the least time: decide MODEL --topo MACHINE."

OF_REPLICA = ("parallel", "workers", "output", "verify")
"""The options that have a meaning where one replica is planned."""

SHOWING = ("diff", "explain", "json_file", "operator_files")
"""The options that have a meaning where nothing is searched."""

NOT_IF = ("diff", "explain", "verify")
"""The options that have none where it is said what would be if."""

WHY_NOT_HELP = "Show what keeping this placement would cost, with all others chosen again. Repeatable."
FRONTIER_HELP = "Show the trade-off of memory and bytes: plans that need less and less memory."
VERIFY_HELP = """Run steps of PyTorch's module and of its graph instead of planning, and compare. A module that is
planned is compared as well, if that takes less than ten seconds, unless --no-verify is given."""
MOST_SECONDS = 10.0
"""How long a module may take to be verified unasked."""

RIVALS = tuple(name for name, searcher in SEARCHERS.items() if searcher.rival_under)

HELP = f"""Find how to split the training step of MODEL over workers so that few bytes move, or little time is taken.

With --workers it is bytes; with --topo alone the time of a step on all its devices, as decide finds it.

{MODEL_HELP} A saved plan.json is shown as it is, without searching. An option of models is for those families that
have it, and for functions with a parameter of its name.

Besides a search of little movement that does not prove its plan, {", ".join(RIVALS)} is tried in up to
{Tuning().rival_steps} steps, where a single one of them may move less. --search NAME tries one by itself."""

EXAMPLES = (
    "plan gpt2 --workers 8 --batch 64 -o plan.json",
    "plan examples/gpt.py:make --parallel tp=2,dp=4",
    "plan plan.json --explain",
)


@command_errors
@with_model_options(SEARCHED)
@click.command("plan", cls=Command, examples=EXAMPLES, context_settings={"show_default": True}, help=HELP)
@click.argument("model", required=False, shell_complete=MODELS)
@planning_options
@click.option(
    "--topo", shell_complete=MACHINES, help="Machine for --objective time and --memory: a name or a topology file."
)
@operators_option
@click.option("--json", "json_file", type=WRITTEN, help="Write the table as JSON.")
@click.option("--explain", is_flag=True, help="Explain where the bytes go and which placements were rejected.")
@click.option("--why-not", multiple=True, metavar="GLOB=PLACEMENT", help=WHY_NOT_HELP)
@click.option("--frontier", is_flag=True, help=FRONTIER_HELP)
@click.option("--verify/--no-verify", default=None, help=VERIFY_HELP)
@click.option("--diff", type=(Path, Path), metavar="PLAN PLAN", help="Compare two saved plans instead.")
@click.pass_context
def main(context: click.Context, /, model: str | None, diff: tuple[Path, Path] | None, **options: Any) -> None:
    """Run the command; `HELP` says what it does."""
    begin(options, ("output", "json_file"), diff or (source_files(model) if model else ()))
    shown: list[Shown]
    plan: Plan | None = None
    said = ""
    if diff is not None:
        refuse_others(context, "--diff compares saved plans", allowed=SHOWING)
        compared = _compared(diff)
        record, shown = msgspec.to_builtins(compared), [compared]
    elif model is None:
        raise click.UsageError("Missing argument 'MODEL'.")
    elif options["verify"]:
        _verify(context, model, options)
    elif options["why_not"] or options["frontier"]:
        record, shown = _what_if(context, model, options)
    else:
        plan, said = _plan_and_verdict(context, model, options)
        machine = load_topology(options["topo"]) if options["topo"] and is_saved_plan(model) else None
        split = planner.summary(plan, machine)
        record, shown = plan_facts.to_data(plan) | {"summary": msgspec.to_builtins(split)}, [plan, split]
        if options["explain"]:
            explained = planner.explain(plan)
            record, shown = record | msgspec.to_builtins(explained), [plan, split, explained]
    if options["json_file"] is not None:
        write_json(options["json_file"], record)
    stdout().print(*(table for part in shown for table in display.tables(part)), sep="\n")
    if said:
        stdout().print(said, soft_wrap=True)
    if plan is not None and options["verify"] is None and plan.graph.entries and not is_saved_plan(str(model)):
        stdout().print(_comparison(plan.graph, str(model), options), soft_wrap=True)


def _plan_and_verdict(context: click.Context, model: str, options: dict[str, Any]) -> tuple[Plan, str]:
    """Return a plan, and what is to be said of it: with a machine alone it is that of least time."""
    if is_saved_plan(model):
        return _plan(context, model, options), ""
    if options["parallel"] is not None and options["parallel"].workers > MOST_WORKERS:
        reason = f"of more than {MOST_WORKERS} workers one replica is planned"
        refuse_others(context, reason, allowed=("model", *OF_REPLICA, *model_options(), *SHOWING[2:]))
        replica_plan: tuple[Plan, str] = import_module(PROJECTING).plan_replica(model, options)
        return replica_plan
    if options["topo"] is not None and not any(options[name] for name in DIVIDING) and options["objective"] == "bytes":
        reason = "--topo alone compares ways by name, as decide does, and --objective time --workers K searches plans"
        refuse_others(context, reason, allowed=(*OF_DECISION, *model_options()))
        words = tuple(pin.asked for pin in options["pins"])
        plan, verdict = import_module(DECIDE).planned_for_time(model, {**options, "pins": words})
        if options["output"] is not None:
            plan.save(options["output"])
        return plan, verdict
    alone = options["objective"] == "bytes" and options["parallel"] is None
    plan = _plan(context, model, options)
    return plan, LEAST_BYTES if alone and SEARCHERS[options["searcher"]].chooses_from_all else ""


def _what_if(context: click.Context, model: str, options: dict[str, Any]) -> tuple[dict[str, Any], list[Shown]]:
    """Answer what pins would cost, or show a frontier; a plan that is found on the way is saved where that is asked."""
    asked = "--frontier" if options["frontier"] else "--why-not"
    if is_saved_plan(model):
        raise click.UsageError(f"{asked} takes a model, which is planned anew, found the saved plan {model}")
    refuse_others(context, f"{asked} plans otherwise", ["model", *(name for name in options if name not in NOT_IF)])
    graph, search = read_request(model, options, options["topo"])
    if options["frontier"]:
        frontier = planner.frontier(graph, **search)
        return {"frontier": msgspec.to_builtins(frontier)}, [frontier]
    bench = planner.Workbench(graph, **search)
    answers: list[Shown] = [bench.why_not(pin) for pin in options["why_not"]]
    if options["output"] is not None:
        bench.plan.save(options["output"])
    return {"why_not": msgspec.to_builtins(answers)}, answers


def _verify(context: click.Context, model: str, options: dict[str, Any]) -> None:
    """Run steps beside PyTorch, by what the entry point gave to run it, and end."""
    refuse_others(context, "--verify plans nothing", allowed=("model", "verify", "operator_files", *model_options()))
    import_module(PROCESS).settle_process()
    verification = import_module(VERIFICATION).verify(function_of(model, **given_options(options)), model)
    stdout().print(*display.tables(verification), sep="\n")
    if verification.failure:
        raise JobError(verification.failure)
    context.exit(0)


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
    uncut = " before it is cut into micro-batches" if graph.micro_batches > 1 else ""
    return f"compared with PyTorch{uncut}: {count} tensors are equal after {verification.STEPS} steps in {dtype}"


def _compared(paths: tuple[Path, Path]) -> planner.PlanDifference:
    names = paths[0].name, paths[1].name
    return planner.diff(*paths, names if names[0] != names[1] else (str(paths[0]), str(paths[1])))


def _plan(context: click.Context, model: str, options: dict[str, Any]) -> Plan:
    """Load a saved plan, or search one and save it."""
    if not is_saved_plan(model):
        return plan_model(model, options, options["topo"], bound=options["explain"])
    refuse_others(context, f"{model} is a saved plan, which is not searched again", allowed=("model", "topo", *SHOWING))
    return load_plan(model, whole=False)
