"""Decisions in files, as `decide --json` writes them."""

from __future__ import annotations

import shlex
from pathlib import Path

import msgspec

from planner.errors import InputError
from planner.files import read_input
from tensor_partitioner.decision.record import Decision


def load_decision(file: Path) -> Decision:
    """Read a decision; an InputError where it is none."""
    try:
        return msgspec.json.decode(read_input(file), type=Decision)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: {error}") from error


def best_of(file: Path) -> tuple[list[str], int]:
    """Return the words that export-plan takes for a decision's best, and devices in a node.

    An InputError where the best is a plan that a search found, which a decision does not hold.
    """
    decision = load_decision(file)
    typed = next((words for words in map(shlex.split, decision.commands) if "--parallel" in words), None)
    if typed is None:
        first = decision.commands[0] if decision.commands else "plan MODEL -o plan.json"
        raise InputError(f"{file}: the best is a plan that a search found: make it by {first}, and export that file")
    return typed[1 : typed.index("--parallel") + 2], decision.machine.per_node
