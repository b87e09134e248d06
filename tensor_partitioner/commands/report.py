"""The command `report`: write an HTML page of a plan and its reports, of a decision, or of several side by side."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import click

from planner.errors import InputError
from planner.files import format_of, read_input
from planner.plans.plan_json import load_plan
from planner.report.schema import read_reports
from tensor_partitioner.commands.console import WRITTEN, Command, command_errors, operators_option, stdout
from tensor_partitioner.commands.planning_options import MACHINES, begin
from tensor_partitioner.decision.record import load_decision
from tensor_partitioner.display import printable
from topologies import available

EXAMPLES = (
    "report plan.json -o page.html",
    "report plan.json simulated.json executed.json -o page.html",
    "report decision.json -o page.html",
    "report first.json second.json -o page.html",
)
TOPO_HELP = f"Simulate the plan on this machine for the page: a topology file, or one of {', '.join(available())}."


@command_errors
@click.command("report", cls=Command, examples=EXAMPLES, context_settings={"show_default": True})
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE.json...")
@click.option("--topo", shell_complete=MACHINES, help=f"{TOPO_HELP}  [default: that of the simulated report]")
@operators_option
@click.option("-o", "output", type=WRITTEN, default=Path("page.html"), help="Write the page here.")
def main(files: tuple[Path, ...], topo: str | None, operator_files: tuple[Path, ...], output: Path) -> None:
    """Write one self-contained HTML file that shows a PLAN and reports of it, or a DECISION.

    Several decisions or plans are shown side by side. A decision is written by decide --json; reports by simulate
    --json and execute --json, in any order. With --tasks, a report shows which worker did what when.
    """
    begin({"output": output, "operator_files": operator_files}, ("output",), files)
    kinds = [_kind(file) for file in files]
    page = import_module("tensor_partitioner.page")
    if kinds == ["decision"]:
        page.write(page.decision_content(load_decision(files[0]), machine=topo), output)
    elif kinds in (["decision"] * len(files), ["plan"] * len(files)) and len({*files}) > 1:
        make = {
            "decision": lambda file: page.decision_content(load_decision(file), machine=topo),
            "plan": lambda file: page.plan_content(load_plan(file), (), name=file.name, machine=topo),
        }
        page.write_beside({str(file): make[kinds[0]](file) for file in files}, output)
        if len({read_input(file) for file in files}) == 1:
            stdout().print(printable(f"{', '.join(map(str, files))}: no difference"), soft_wrap=True)
    else:
        plans = [file for file, kind in zip(files, kinds, strict=True) if kind == "plan"]
        if len(plans) != 1 or "decision" in kinds:
            raise click.UsageError(
                f"expected one plan with reports of it, or only decisions, or only plans, found {', '.join(kinds)}"
            )
        told = (file for file, kind in zip(files, kinds, strict=True) if kind == "report")
        reports = [report for file in told for report in read_reports(file)]
        page.write(page.plan_content(load_plan(plans[0]), reports, name=plans[0].name, machine=topo), output)
    stdout().print(printable(f"{output}: open it in a browser; it is self-contained."))


def _kind(file: Path) -> str:
    """Return the kind of a file: "plan", "report" or "decision". Raises InputError for any other."""
    text = read_input(file)
    name = "report" if text.lstrip().startswith(b"[") else format_of(text).partition("/")[0]
    if name not in ("plan", "report", "decision"):
        raise InputError(f"{file}: expected a plan, a report or a decision, found {name or 'none of these'}")
    return name
