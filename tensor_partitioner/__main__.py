"""`python -m tensor_partitioner COMMAND ...`: any of the commands, by its name."""

import sys

from tensor_partitioner.commands.entry import COMMANDS

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        found = sys.argv[1] if len(sys.argv) > 1 else "none"
        print(f"error: expected one of {', '.join(COMMANDS)}, found {found}", file=sys.stderr)
        sys.exit(2)
    name = sys.argv.pop(1)
    sys.argv[0] = name
    COMMANDS[name]()
