"""`operators check`: the verification of operators as a command."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from rich.table import Table

import tdl
from executor.backend import BACKENDS, array_module
from operator_verification import KINDS, CheckOptions, Verification, check_operator
from planner.extensions import load_operators
from planner.failures import JobError
from tensor_partitioner.commands.console import operators_option, stdout
from tensor_partitioner.display import nearest, table, tracked

SHOWN_FAILURES = 3
"""Failures of an operator that are printed; --json has all of them."""


@click.command()
@click.argument("name", required=False)
@click.option("--cases", type=click.IntRange(1), default=6, show_default=True, help="Random cases per operator.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the cases.")
@click.option("--backend", type=click.Choice(BACKENDS), default="auto", show_default=True, help="Array backend.")
@operators_option
@click.option("--json", "as_json", is_flag=True, help="Print every result as JSON instead of a table.")
def check(name: str | None, operator_files: tuple[Path, ...], as_json: bool, **settings: Any) -> None:
    """Verify operator NAME, or all operators.

    Checks on random small cases: inferred shapes; the kernel against the description's reference evaluation; every
    strategy (alone, and in random plans) against the unsplit result; the gradient rule against central differences.
    Exit status 1 if anything differs.
    """
    import_module("scipy.special")  # kernels import it on first use, and its warnings would count as failures
    load_operators(operator_files)
    names = list(tdl.catalog) if name is None else [_known(name)]
    xp = array_module(settings["backend"])
    options = CheckOptions(cases=settings["cases"], seed=settings["seed"], xp=xp)
    results = [check_operator(operator, options) for operator in tracked("verifying operators", names)]
    if as_json:
        click.echo(json.dumps([asdict(result) for result in results], indent=1))
    else:
        stdout().print(_kinds_table(results[0]) if name else _operators_table(results))
        _print_failures(results)
    failed = [result for result in results if result.failures]
    if failed:
        first = failed[0].failures[0]
        more = "" if len(failed) == 1 else f" (failed: {', '.join(result.operator for result in failed)})"
        raise JobError(f"operator {first}{more}")


def _known(name: str) -> str:
    """Return `name` if the catalog has it. Raises a usage error with similar names otherwise."""
    if name in tdl.catalog:
        return name
    raise click.UsageError(f"unknown operator {name!r}{nearest(name, tdl.catalog)}; `operators list` shows all")


def _operators_table(results: list[Verification]) -> Table:
    """Return a table with a row per operator: the number of checks of each kind, and of failures."""
    rows = []
    for result in results:
        counts = (str(result.kinds.get(kind, "-")) for kind in KINDS)
        rows.append((result.operator, *counts, _verdict(len(result.failures))))
    return table(f"{sum(result.checks for result in results)} checks", ("operator", *KINDS, "result"), rows)


def _kinds_table(result: Verification) -> Table:
    """Return a table with a row per kind of check of one operator."""
    rows = []
    for kind in KINDS:
        failed = sum(failure.kind == kind for failure in result.failures)
        count = result.kinds.get(kind, 0)
        strategies = " ".join(result.strategies) if kind == "strategies" else ""
        rows.append((kind, str(count), strategies, _verdict(failed) if count or failed else "-"))
    return table(f"{result.operator}: {result.checks} checks", ("check", "checks", "of", "result"), rows, text=("of",))


def _verdict(failed: int) -> str:
    return f"{failed} FAILED" if failed else "ok"


def _print_failures(results: list[Verification]) -> None:
    """Print the first failures of every operator."""
    console = stdout()
    for result in results:
        for failure in result.failures[:SHOWN_FAILURES]:
            console.print(str(failure))
        if len(result.failures) > SHOWN_FAILURES:
            console.print(f"{result.operator}: {len(result.failures) - SHOWN_FAILURES} more")
