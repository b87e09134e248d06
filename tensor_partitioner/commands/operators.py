"""The command `operators`: list the catalog of operators, and verify it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points
from pathlib import Path

import click
import numpy as np

import tdl
from executor.cases import Draw, draw_case, generators
from executor.kernels import KERNELS
from planner.extensions import load_operators
from planner.graph.rules import RULES
from tensor_partitioner.commands.console import CommandGroup, command_errors, operators_option, stdout
from tensor_partitioner.display import table


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One operator of the catalog. Variables and strategies are those of one example application."""

    name: str
    category: str
    operands: tuple[str, ...]
    attributes: tuple[str, ...]
    variables: tuple[str, ...]
    strategies: dict[str, str | None]
    refusals: dict[str, str]
    is_elementwise: bool | None
    has_kernel: bool
    has_gradient: bool


def entry(name: str) -> CatalogEntry:
    """Describe an operator at the ranks of its first verification case. Raises TDLError if it cannot be drawn."""
    operator = tdl.catalog[name]
    description = None
    drawn = generators()
    if name in drawn:
        try:
            case = draw_case(drawn[name], Draw(np.random.default_rng(0)))
        except tdl.TDLError as error:
            raise tdl.TDLError(f"{name}: {error}") from error
        description = operator.describe(tuple(operand.ndim for operand in case.operands), case.attributes)
    return CatalogEntry(
        name=name, category=operator.category, operands=tuple(operator.operands), attributes=tuple(operator.attributes),
        variables=description.variables if description else (),
        strategies={key: strategy.reducer for key, strategy in description.strategies.items()} if description else {},
        refusals=dict(description.refusals) if description else {},
        is_elementwise=description.is_elementwise if description else None, has_kernel=name in KERNELS,
        has_gradient=name in RULES,
    )  # fmt: skip


PACKAGES = {
    "tensor_partitioner.cases": "extras/verification: variables and strategies of the catalog's operators",
    "tensor_partitioner.pytorch": "extras/rare_operators: operators of PyTorch that few modules have",
}
"""Packages that add to the list, by the entry point group of what they add."""

EXAMPLES = ("operators list", "operators check softmax --cases 20", "operators check swish --operators own.py")


@click.group(name="operators", cls=CommandGroup, examples=EXAMPLES)
def cli() -> None:
    """Show the catalog of operators, and verify it."""


@cli.command(name="list")
@operators_option
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON instead of a table.")
def list_operators(operator_files: tuple[Path, ...], as_json: bool) -> None:
    """Print every operator with its index variables and strategies.

    A strategy is an index variable that may be split. The parts are concatenated, or combined by the reducer after the
    colon. Variables and strategies are shown for one example of the operator's ranks and attributes.
    """
    load_operators(operator_files)
    entries = [entry(name) for name in tdl.catalog]
    if as_json:
        click.echo(json.dumps([asdict(operator) for operator in entries], indent=1))
        return
    columns = ("operator", "operands", "variables", "strategies", "element-wise", "kernel", "gradient")
    stdout().print(table(f"{len(entries)} operators", columns, map(_row, entries), text=columns))
    for adds in (adds for group, adds in PACKAGES.items() if not entry_points(group=group)):
        stdout().print(f"not installed: pip install {adds}", soft_wrap=True)


def _row(operator: CatalogEntry) -> tuple[str, ...]:
    strategies = (name if reducer is None else f"{name}:{reducer}" for name, reducer in operator.strategies.items())
    texts = (operator.name, *map(" ".join, (operator.operands, operator.variables, strategies)))
    answers = {True: "yes", False: "-", None: "?"}
    return *texts, *(answers[value] for value in (operator.is_elementwise, operator.has_kernel, operator.has_gradient))


@click.command(name="check", context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def without_verification() -> None:
    """Verify operators; needs the package of `extras/verification`."""
    raise click.UsageError("operators check: the package that verifies is missing; pip install extras/verification")


cli.add_command(without_verification)
for added in entry_points(group="tensor_partitioner.operators"):
    cli.add_command(added.load())

main = command_errors(cli)
