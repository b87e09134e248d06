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
from planner.search.solver.problem import Tuning
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
"""Modules that few calls need. They are imported only by those calls."""

OF_DECISION = (
    *("model", "topo", "pins", "pins_file", "objective"),
    *("output", "verify", "json_file", "explain", "operator_files"),
)
"""Options that apply when strategies are compared by name, as `decide` does."""

DIVIDING = ("workers", "ways", "parallel", "memory", "shares")
"""Options that say how to divide a model. Without them, --topo requests the shortest time on all its devices."""

LEAST_BYTES = "This plan moves the fewest bytes of all plans found. For the shortest time: decide MODEL --topo MACHINE."

OF_REPLICA = ("parallel", "workers", "output", "verify")
"""Options that apply when one replica is planned."""

SHOWING = ("diff", "explain", "json_file", "operator_files")
"""Options that apply when nothing is searched."""

NOT_IF = ("diff", "explain", "verify")
"""Options that do not apply to --why-not."""

WHY_NOT_HELP = "Show what this placement would cost, with all others chosen anew. Repeatable."
VERIFY_HELP = """Instead of planning, run training steps of the PyTorch module and of its graph, and compare. Planning
compares a module too if that takes less than ten seconds; --no-verify skips it."""
MOST_SECONDS = 10.0
"""Longest estimated time of a comparison that runs without --verify."""

EVERY = " or ".join(name for name, searcher in SEARCHERS.items() if searcher.chooses_from_all)
RIVALS = tuple(name for name, searcher in SEARCHERS.items() if searcher.rival_under)

HELP = f"""Find how to split the training step of MODEL over workers, with few bytes moved or in little time.

With --workers it minimizes bytes; with --topo alone, the time of a step on all devices, as decide does.

{MODEL_HELP} A saved plan.json is shown without searching. A model option applies to the families that have it, and to
functions with a parameter of that name.

If {EVERY} minimizes bytes in up to {Tuning().rival_steps} steps and does not prove its plan optimal,
{", ".join(RIVALS)} is tried as well where it may move fewer bytes. Other searchers run alone."""

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
@click.option("--explain", is_flag=True, help="Explain where bytes are moved and which placements were rejected.")
@click.option("--why-not", multiple=True, metavar="GLOB=PLACEMENT", help=WHY_NOT_HELP)
@click.option("--verify/--no-verify", default=None, help=VERIFY_HELP)
@click.option("--diff", type=(Path, Path), metavar="PLAN PLAN", help="Compare two saved plans instead.")
@click.pass_context
def main(context: click.Context, /, model: str | None, diff: tuple[Path, Path] | None, **options: Any) -> None:
    """Run the command. `HELP` describes it."""
    begin(options, ("output", "json_file"), diff or (source_files(model) if model else ()))
    shown: list[Shown]
    plan: Plan | None = None
    said = ""
    if diff is not None:
        refuse_others(context, "--diff compares saved plans", allowed=SHOWING)
        names = diff[0].name, diff[1].name
        compared = planner.diff(*diff, names if names[0] != names[1] else (str(diff[0]), str(diff[1])))
        record, shown = msgspec.to_builtins(compared), [compared]
    elif model is None:
        raise click.UsageError("Missing argument 'MODEL'.")
    elif options["verify"]:
        _verify(context, model, options)
    elif options["why_not"]:
        record, shown = _what_if(context, model, options)
    else:
        plan, said = plan_and_verdict(context, model, options)
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


def planned(context: click.Context, /, model: str, **options: Any) -> Plan:
    """Return the plan of a command line that asks for one."""
    begin(options, ("output", "json_file"), source_files(model))
    return plan_and_verdict(context, model, options)[0]


def plan_and_verdict(context: click.Context, model: str, options: dict[str, Any]) -> tuple[Plan, str]:
    """Load a saved plan, or search one and save it if an output is given. Return it with a sentence about it."""
    if is_saved_plan(model):
        reason = f"{model} is a saved plan, which is not searched again"
        refuse_others(context, reason, allowed=("model", "topo", *SHOWING))
        return load_plan(model, whole=False), ""
    plan, verdict = _searched(context, model, options)
    if options["output"] is not None:
        plan.save(options["output"])
    return plan, verdict


def _searched(context: click.Context, model: str, options: dict[str, Any]) -> tuple[Plan, str]:
    """Search a plan. With a machine alone, it is the plan of the fastest candidate."""
    if options["parallel"] is not None and options["parallel"].workers > MOST_WORKERS:
        reason = f"for more than {MOST_WORKERS} workers only one replica is planned"
        refuse_others(context, reason, allowed=("model", *OF_REPLICA, *model_options(), *SHOWING[2:]))
        plan, verdict = import_module(PROJECTING).plan_replica(model, options)
        return plan, verdict
    if options["topo"] is not None and not any(options[name] for name in DIVIDING) and options["objective"] == "bytes":
        reason = "--topo alone compares strategies as decide does; --objective time --workers K searches plans"
        refuse_others(context, reason, allowed=(*OF_DECISION, *model_options()))
        words = tuple(pin.asked for pin in options["pins"])
        plan, verdict = import_module(DECIDE).planned_for_time(model, {**options, "pins": words})
        return plan, verdict
    alone = options["objective"] == "bytes" and options["parallel"] is None
    plan = plan_model(model, options, options["topo"], bound=options["explain"])
    return plan, LEAST_BYTES if alone and SEARCHERS[options["searcher"]].chooses_from_all else ""


def _what_if(context: click.Context, model: str, options: dict[str, Any]) -> tuple[dict[str, Any], list[Shown]]:
    """Answer --why-not. Saves the base plan if an output is given."""
    if is_saved_plan(model):
        raise click.UsageError(f"--why-not: expected a model, which is planned anew, found the saved plan {model}")
    refuse_others(context, "--why-not excludes others", ["model", *(name for name in options if name not in NOT_IF)])
    graph, search = read_request(model, options, options["topo"])
    base = planner.plan(graph, **search)
    answers: list[Shown] = [planner.why_not(base, pin, **search) for pin in options["why_not"]]
    if options["output"] is not None:
        base.save(options["output"])
    return {"why_not": msgspec.to_builtins(answers)}, answers


def _verify(context: click.Context, model: str, options: dict[str, Any]) -> None:
    """Compare training steps of the graph with PyTorch's, then exit."""
    refuse_others(context, "--verify plans nothing", allowed=("model", "verify", "operator_files", *model_options()))
    import_module(PROCESS).settle_process()
    verification = import_module(VERIFICATION).verify(function_of(model, **given_options(options)), model)
    stdout().print(*display.tables(verification), sep="\n")
    if verification.failure:
        raise JobError(verification.failure)
    context.exit(0)


def _comparison(graph: Graph, model: str, options: dict[str, Any]) -> str:
    """Compare an imported module with its graph if that is quick. Returns one line with the result."""
    verification = import_module(VERIFICATION)
    if (seconds := verification.estimated_seconds(graph)) > MOST_SECONDS:
        return f"not compared with PyTorch, which may take {seconds:.0f} s; --verify does it"
    try:
        compared = verification.verify(function_of(model, **given_options(options)), model)
    except GraphError as error:
        return f"not compared with PyTorch: {error}"
    if compared.failure:
        raise JobError(compared.failure)
    count, dtype = len(compared.compared), compared.dtype
    uncut = " before it is split into micro-batches" if graph.micro_batches > 1 else ""
    return f"compared with PyTorch{uncut}: {count} tensors are equal after {verification.STEPS} steps in {dtype}"
