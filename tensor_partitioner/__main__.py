"""`python -m tensor_partitioner COMMAND ...`: any of the commands, by its name; without one, a list of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tensor_partitioner import __version__
from tensor_partitioner.commands.entry import BAD_INPUT, COMMANDS

SHORT = {"export": "export-plan"}
"""Commands that are called otherwise on a path, where shells have an `export` of their own."""


def overview() -> str:
    """Return every command with a line on what it does."""
    lines = (f"  {name:<12} {meaning}" for name, (_, meaning) in COMMANDS.items())
    return "\n".join((f"tensor-partitioner {__version__}: NAME --help says more of each", *lines))


def main(arguments: Sequence[str]) -> None:
    """Run the command that the first argument names with the others, or list them all."""
    name = arguments[0] if arguments else "--help"
    name = SHORT.get(name, name)
    if name in COMMANDS:
        sys.argv = [name, *arguments[1:]]
        COMMANDS[name][0]()
    elif name in ("--help", "--version"):
        print(overview() if name == "--help" else f"tensor-partitioner {__version__}")
    else:
        print(f"error: expected a command among {', '.join(COMMANDS)}, found {name}", file=sys.stderr)
        sys.exit(BAD_INPUT)


if __name__ == "__main__":
    main(sys.argv[1:])
