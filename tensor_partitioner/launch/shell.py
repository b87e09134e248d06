"""Read a shell script without running it: which of its commands run, and with which values of its variables.

What depends on more than the script itself, such as a command's output, is unknown. A branch with an unknown condition
may run; its commands are kept, and what it assigns is unknown.
"""

from __future__ import annotations

import operator
import re
import shlex
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial

COMMANDS = re.compile(
    r"""(?<!\S)\#[^\n]* | ((?: =\((?>(?<=\s)\#[^\n]* | "[^"]*" | '[^']*' | [^()"'])*+\)
    | \\. | "(?:\\.|[^"\\])*" | '[^']*' | (?!(?<=\s)\#)[^;\n"'] | ["'] )+)""", re.VERBOSE | re.DOTALL
)  # fmt: skip
"""A comment, or a command (the group) up to the end of its line or a semicolon outside of quotes and arrays."""

GROUP = re.compile(r"(?:(?:function\s+)?[\w-]+\s*(?:\(\)\s*)?)?\{(?:\s+|$)")
"""The beginning of a function or of a group of commands. A brace ends it."""

LOOP = re.compile(r"for\s+(\w+)\s")
KEYWORD = re.compile(r"((?:if|elif|else|then|fi|case|esac|do)\b|}(?!\S)|[^\s()=]+\)(?=\s))((?<=case)\s.*?\sin\b)?\s*")
TESTED = re.compile(r"(\[.*?\])\s*(&&|\|\|)\s*(.*)", re.DOTALL)
ASSIGNMENT = re.compile(r"(?:(?:export|local|readonly|declare)\s+)?(\w+)(\+?)=(?!\"?\$\{?\d)(.*)", re.DOTALL)
"""Not of an argument of the script, beside which defaults are kept."""

VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?[-=]((?:\$\{[^{}]*\}|[^{}])*))?\}|(\w+))")
PRODUCT = re.compile(r"\$\(\(\s*(\w+(?:\s*[*/]\s*\w+)*)\s*\)\)")
NODES = re.compile(r"^#SBATCH\s+(?:--nodes[=\s]|-N)\s*(\d+)", re.MULTILINE)
"""The number of nodes that a script asks Slurm for."""

MOST_CHARACTERS = 1 << 13
"""Longest value of a variable; a longer one is unknown."""

COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq, "-ne": operator.ne, "-gt": operator.gt, "-ge": operator.ge, "-lt": operator.lt,
    "-le": operator.le,
}  # fmt: skip

Truth = bool | None
"""None: unknown."""


def commands_run(text: str) -> list[str]:
    r"""Return the commands of a script that run, or may run, with known variables substituted.

    >>> commands_run('N=2\nif [ $N -gt 1 ]; then A="--tp $N"; else A=""; fi\ntrain $A  # two')
    ['N=2', 'A="--tp 2"', 'train --tp 2']
    """
    nodes = {name: said[1] for said in NODES.finditer(text) for name in ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")}
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    return list(_Script(nodes).commands(lines.replace("\\\n", " ")))


class _Script:
    """The variables known so far, and for each `if` around a command whether the branch, or one before it, runs.

    The innermost 256 are kept.
    """

    def __init__(self, values: dict[str, str]) -> None:
        self._values = values
        self._branches = deque[tuple[Truth, Truth]](maxlen=1 << 8)

    def commands(self, text: str) -> Iterator[str]:
        for command in filter(None, COMMANDS.findall(text)):
            yield from self._run(command.strip())

    def _run(self, command: str) -> Iterator[str]:
        """Yield the commands of a command that runs or may run, and keep what it assigns."""
        if keyword := KEYWORD.match(command):
            self._branch(keyword[1], command := command[keyword.end() :])
            if keyword[1] not in {"if", "elif"}:
                yield from self._run(command)
        elif tested := TESTED.match(command):
            truth, (chosen, _, other) = self._truth(tested[1]), tested[3].partition("||")
            for branch, runs in ((chosen, truth), (other, _negated(truth))):
                self._branches.append((runs if tested[2] == "&&" else _negated(runs), None))
                yield from self._run(branch.strip())
                self._branches.pop()
        elif group := GROUP.match(command):
            self._branches.append((True, None))
            yield from self._run(command[group.end() :])
        elif command and all(runs is not False for runs, _ in self._branches):
            command = self._substituted(command)
            if loop := LOOP.match(command):
                self._values.pop(loop[1], None)
            if assignment := ASSIGNMENT.fullmatch(command):
                self._assign(*assignment.groups())
            yield command

    def _branch(self, keyword: str, condition: str) -> None:
        if keyword in {"if", "case"}:
            truth = self._truth(condition) if keyword == "if" else None
            self._branches.append((truth, truth))
        elif keyword in {"elif", "else"} and self._branches:
            _, before = self._branches.pop()
            truth = self._truth(condition) if keyword == "elif" else True
            runs = False if before is True or truth is False else None if before is None else truth
            self._branches.append((runs, True if truth is True else before if truth is False else before or truth))
        elif self._branches and (keyword in {"fi", "esac"} or (keyword == "}" and self._branches[-1][1] is None)):
            self._branches.pop()

    def _assign(self, name: str, adds: str, value: str) -> None:
        value = (self._values.get(name, "") if adds else "") + value.strip("\"'")
        is_known = all(runs for runs, _ in self._branches) and not re.search(r"\$\(|`|^\(", value)
        self._values.pop(name, None)
        if is_known and len(value) <= MOST_CHARACTERS:
            self._values[name] = value

    def _substituted(self, text: str) -> str:
        return PRODUCT.sub(partial(_multiplied, self._values), VARIABLE.sub(self._value, text))

    def _value(self, match: re.Match[str]) -> str:
        otherwise = match[0] if match[2] is None else self._substituted(match[2].strip("\"'"))
        return self._values.get(match[1] or match[3], otherwise)

    def _truth(self, condition: str) -> Truth:
        """Return whether a test holds: of two numbers, of two words, or of an empty word."""
        try:
            words = [self._substituted(word) for word in shlex.split(condition.strip("[] \t"))]
        except ValueError:  # unbalanced quotes
            return None
        if any(re.search(r"[$`*(]", word) for word in words):
            return None
        match words:
            case [first, compared, second] if compared in COMPARISONS and first.isdecimal() and second.isdecimal():
                return COMPARISONS[compared](int(first[:18]), int(second[:18]))
            case [first, "=" | "==" | "!=" as sign, second]:
                return (first == second) == (sign != "!=")
            case ["-z" | "-n" as test, word]:
                return (word == "") == (test == "-z")
        return None


def _negated(truth: Truth) -> Truth:
    return None if truth is None else not truth


def _multiplied(known: Mapping[str, str], match: re.Match[str]) -> str:
    """Return the value of products and quotients of whole numbers; the text itself if it is unknown."""
    first, *rest = re.findall(r"\w+|[*/]", match[1])
    numbers = [known.get(word, word)[:18] for word in (first, *rest[1::2])]
    steps = [*zip(rest[::2], numbers[1:], strict=True)]
    if not all(number.isdecimal() for number in numbers) or any(sign == "/" and not int(by) for sign, by in steps):
        return match[0]
    value = int(numbers[0])
    for sign, by in steps:
        value = value * int(by) if sign == "*" else value // int(by)
    return str(value)
