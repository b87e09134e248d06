"""This project's own executor under torchrun: how the plan is made, and started on every node."""

from __future__ import annotations

import shlex

from planner.export.setup import Launch, Setup


def write(setup: Setup, name: str) -> str:
    """Return a script of the shell; `name` is what a plan's file is called that is yet to be made."""
    saved = setup.saved or f"{name}.json"
    command = "" if setup.saved else shlex.join(["plan", *setup.command, "-o", saved]) + "\n"
    run = f"{setup.torchrun} -m executor {shlex.quote(saved)} --steps 100\n"
    return f"#!/bin/sh\n# {setup.model}: written by export-plan --to torchrun\n{command}{run}"


TORCHRUN = Launch("the executor", lambda setup: "", lambda setup: (), write, any_plan=True)
