"""`python -m tensor_partitioner COMMAND ...`: run a command by name, or list all commands."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tensor_partitioner import __version__
from tensor_partitioner.commands.entry import BAD_INPUT, COMMANDS

SHORT = {"export": "export-plan"}
"""Commands whose script has another name, because shells have a built-in `export`."""


def overview() -> str:
    """Return the list of commands, a line for each."""
    lines = (f"  {name:<12} {meaning}" for name, (_, meaning) in COMMANDS.items())
    return "\n".join((f"tensor-partitioner {__version__}: NAME --help describes a command", *lines))


def main(arguments: Sequence[str]) -> None:
    """Run the command named by the first argument with the remaining ones. Without arguments, list all commands."""
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
