"""Read a shell script without running it: which of its commands run, and with which values of its variables.

What depends on more than the script itself, such as a command's output, is unknown. A branch with an unknown condition
may run: its commands are kept, and of what it assigns, arguments such as `--fp16`; other values are then unknown.
"""

from __future__ import annotations

import ast
import operator
import re
from ast import Add, Div, Mod, Mult, Sub
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import partial
from operator import add, floordiv, mod, mul, sub

QUOTED = r""""(?:\\.|[^"\\])*"|'[^']*'"""
NESTED = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
ARRAY = rf"\((?>(?<=\s)\#[^\n]*|{QUOTED}|{NESTED}|[^()\"'])*+\)"
WORD = rf"(?>{QUOTED}|\${NESTED}|`[^`]*`|\$\{{[^}}]{{0,400}}\}}|\\.|[^\s\"'`()])*+"
COMMANDS = re.compile(rf"(?<!\S)\#[^\n]*|((?:={ARRAY}|\\.|{QUOTED}|(?!(?<=\s)\#)[^;\n\"']|[\"'])+)", re.DOTALL)
"""A comment, or a command (the group) up to the end of its line or a semicolon outside of quotes and arrays."""

LIST = re.compile(rf"(?>(?:\[\[.{{0,500}}?\]\]|\\.|{QUOTED}|[^&|]|&(?!&)|(?<!\|)\|(?!\|))+)|&&|\|\|", re.DOTALL)
"""A command of a list, or the sign between two of them."""

FUNCTION = re.compile(
    r"^([ \t]*)(?:function\s+([\w-]+)\s*(?:\(\s*\))?|([\w-]+)\s*\(\s*\))\s*"
    r"\{([^\n]*;[ \t]*(?=\}[ \t]*$)|(?>[^\n]*\n(?:(?!\1\})[^\n]*\n){0,200})\1)\}",
    re.MULTILINE,
)
GROUP = re.compile(r"\{(?:\s+|$)")
"""The beginning of a group of commands. A brace ends it."""

COMMENT = re.compile(rf"({QUOTED})|(?<=\s)#[^\n]*", re.DOTALL)
"""A text in quotes (the group), or a comment in an array."""

UNQUOTED = re.compile(r"\"((?:\\.|[^\"\\])*)\"|'([^']*)'", re.DOTALL)
COMMENTED = re.compile(r"(?<!\\\n)^[ \t]*#[^\n]*(?:\n|\Z)|^([ \t]*#[^\n]*)\\$", re.MULTILINE)
"""A line that is a comment. One (the group) after a line that continues ends the command, and does not continue."""

HEREDOC = re.compile(
    r"^(?>([^\n]*?)\b(?:cat|tee|python3?)\b[^\n<]{0,200}<<-?[ \t]*['\"]?(\w+)[^\n]*(?:\n|\Z))"
    r"(?>(?:(?![ \t]*\2\n|[^\n]*--num)[^\n]*\n){0,200})[ \t]*\2(?=\n)",
    re.MULTILINE,
)
"""A file that a script writes, or a program in Python, unless it starts a training. The group is what precedes it."""

LABEL = r"\(?[^\s()=|]+(?:\s*\|\s*[^\s()=|]+)*\s*\)(?=\s|$)"
KEYWORD = re.compile(rf"((?:if|elif|else|then|fi|case|esac|do|done)\b|}}(?!\S)|{LABEL})(?:(?<=case)\s(.*?)\sin\b)?\s*")
ASSIGNED = re.compile(rf"(\w+)(\+?)=({ARRAY}|{WORD})", re.DOTALL)
ASSIGNMENTS = re.compile(
    rf"(?:(?:export|local|readonly|declare|typeset)\s+(?:-\w+\s+)*)?(?:{ASSIGNED.pattern}(?:\s+|$))+", re.DOTALL
)
CHANGED = re.compile(
    r"(?:(?:for|unset|let|read(?:\s+-\w+)*)\s+|\(\(\s*(?=\w+\s*(?:\+\+|--|[-+*/%]?=[^=])))(\w+)|(\w+)\+?="
)
"""The beginning of a command that changes a variable otherwise."""

GIVEN = re.compile(r"\$\{?(?:\d|OPTARG)")
"""An argument of the script. A variable to which it is assigned keeps its default."""

ARGUMENTS = re.compile(r"(?!\$\(|`).*--", re.DOTALL)
VARIABLE = re.compile(r"\$(?:\{(\w+|[@*])(?:\[[@*]\]|(:?[-=+])((?:\$\{[^{}]{0,200}\}|[^{}]){0,400}))?\}|(\w+|[@*]))")
COMPUTED = re.compile(r"\$\(\(((?:[^()$]|\([^()$]*\)){1,200})\)\)")
NODES = re.compile(r"^#SBATCH\s+(?:--nodes[=\s]|-N)\s*(\d+)", re.MULTILINE)
"""The number of nodes that a script asks Slurm for."""

MOST_CHARACTERS, MOST_WORDS, MOST_READ, EACH = 1 << 13, 1 << 6, 1 << 23, 1 << 7
"""Longest value, and most words of a condition: others are unknown. Most characters of all commands and values, and
how many each has besides its own."""

COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {
    f"-{name}": getattr(operator, name) for name in ("eq", "ne", "gt", "ge", "lt", "le")
}
STEPS: Mapping[type[ast.operator], Callable[[int, int], int]] = {Mult: mul, Div: floordiv, Mod: mod, Add: add, Sub: sub}

Truth = bool | None
"""None: unknown."""


def commands_run(text: str) -> list[str]:
    r"""Return the commands of a script that run, or may run, with known variables substituted.

    What is assigned follows a space, so that arguments are words.

    >>> commands_run('N=2\nif [ $N -gt 1 ]; then A="--tp $N"; else A=""; fi\ntrain $A  # two')
    ['N= 2', 'A= --tp 2', 'train --tp 2']
    """
    nodes = {name: said[1] for said in NODES.finditer(text) for name in ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")}
    lines = HEREDOC.sub(r"\1", COMMENTED.sub(lambda line: f"{line[1]} " if line[1] else "", text))
    joined = re.sub(r"\\\n|(?:(?<=&&)|(?<=\|\|))[ \t]*\n", " ", lines)
    functions = {said[2] or said[3]: said[4] for said in FUNCTION.finditer(joined)}
    return list(_Script(nodes, functions).commands(FUNCTION.sub("", joined)))


class _Script:
    """The values known so far, and for each `if` around a command whether the branch, or one before it, runs.

    An unknown value is None. The innermost 256 branches are kept.
    """

    def __init__(self, values: Mapping[str, str], functions: dict[str, str]) -> None:
        self._values: dict[str, str | None] = {**values}
        self._functions = functions
        self._branches = deque[tuple[Truth, Truth]](maxlen=1 << 8)
        self._cases = deque[str](maxlen=1 << 8)
        self._given: dict[str, str | None] = {}
        self._loops, self._left = 0, MOST_READ

    def commands(self, text: str) -> Iterator[str]:
        for command in filter(None, COMMANDS.findall(text)):
            yield from self._run(command.strip())

    def _read(self, text: str) -> str:
        """Return a command or value as it is. Raises ValueError if all that were read are too long together."""
        self._left -= len(text) + EACH
        if self._left < 0:
            raise ValueError(f"found more than {MOST_READ} characters of commands and values")
        return text

    def _run(self, command: str) -> Iterator[str]:
        """Yield the commands of a command that runs or may run, and keep what it assigns."""
        if keyword := KEYWORD.match(self._read(command)):
            self._branch(keyword[1], keyword[2] or command[keyword.end() :])
            if keyword[1] not in {"if", "elif"}:
                yield from self._run(command[keyword.end() :])
        elif len(parts := LIST.findall(command)) > 1:
            yield from self._list(parts if parts[0] not in {"&&", "||"} else ["", *parts])
        elif group := GROUP.match(command):
            self._branches.append((True, None))
            yield from self._run(command[group.end() :])
        elif command and all(runs is not False for runs, _ in self._branches):
            yield from self._plain(command)

    def _list(self, parts: list[str]) -> Iterator[str]:
        """Yield the commands of a list: each depends on the truth of those before it."""
        truth: Truth = True
        for sign, part in zip(("&&", *parts[1::2]), map(str.strip, parts[::2]), strict=False):
            runs = truth if sign == "&&" else _negated(truth)
            self._branches.append((runs, None))
            yield from self._run(part)
            self._branches.pop()
            said = True if ASSIGNMENTS.fullmatch(part) else self._truth(part)
            truth = said if runs else truth if runs is False else None

    def _plain(self, command: str) -> Iterator[str]:
        if ASSIGNMENTS.fullmatch(command):
            for name, adds, value in ASSIGNED.findall(command):
                self._assign(name, adds, value)
                yield f"{name}= {self._values.get(name) or ''}"
            return
        if changed := CHANGED.match(command):
            self._values[changed[1] or changed[2]] = None
        words = [*filter(None, re.findall(WORD, command := self._substituted(command)))] or [""]
        yield command
        if command in {"exit", "exit 0"} and all(runs for runs, _ in self._branches):
            self._branches.appendleft((False, None))
        if words[0] == "shift":
            self._given = dict.fromkeys(self._given)
        name = words[-1 if words[0] not in self._functions else 0].strip("\"'")
        if name in self._functions and words[0] != "export":
            yield from self._call(name, words[1:])

    def _call(self, name: str, words: list[str]) -> Iterator[str]:
        """Yield the commands of a function, which is not followed within itself."""
        body, before = self._functions.pop(name), self._given
        given = {str(at): None if "$" in word else word.strip("\"'") for at, word in enumerate(words, 1)}
        self._given = given | {"@": " ".join(words)}
        yield from self.commands(body)
        self._functions[name], self._given = body, before

    def _branch(self, keyword: str, condition: str) -> None:
        if keyword == "if":
            truth = self._truth(condition)
            self._branches.append((truth, truth))
        elif keyword == "case":
            self._branches.append((False, False))
            self._cases.append(self._substituted(condition).strip("\"' "))
        elif self._branches and (keyword in {"elif", "else"} or (keyword[-1] == ")" and self._cases)):
            _, before = self._branches.pop()
            truth = self._truth(condition) if keyword == "elif" else keyword == "else" or self._matches(keyword)
            runs = False if before is True or truth is False else None if before is None else truth
            self._branches.append((runs, True if truth is True else before if truth is False else before or truth))
        elif self._branches and (keyword in {"fi", "esac"} or (keyword == "}" and self._branches[-1][1] is None)):
            self._branches.pop()
            if keyword == "esac" and self._cases:
                self._cases.pop()
        self._loops += (keyword == "do") - (keyword == "done")

    def _matches(self, label: str) -> Truth:
        """Return whether a label fits the word of its case."""
        patterns = [pattern.strip("\"'( ") for pattern in label[:-1].split("|")]
        is_known = not re.search(r"[$`]", self._cases[-1] + label)
        return any(fnmatchcase(self._cases[-1], pattern) for pattern in patterns) if is_known else None

    def _assign(self, name: str, adds: str, value: str) -> None:
        """Keep a value. One of a branch that may run is unknown, unless it has arguments."""
        is_array, changes = value.startswith("("), self._loops > 0 and (adds or name in re.findall(r"\w+", value))
        value = self._substituted(COMMENT.sub(r"\1", value[1:-1]) if is_array else value)
        if not is_array:
            value = UNQUOTED.sub(r"\1\2", value).replace('\\"', '"')
        if GIVEN.match(value):
            return
        if adds:
            value = self._read((self._values.get(name) or "") + " " * is_array + value)
        is_known = not changes and all(runs for runs, _ in self._branches) and not re.search(r"\$\(|`", value)
        self._values[name] = value if (is_known or ARGUMENTS.match(value)) and len(value) <= MOST_CHARACTERS else None

    def _substituted(self, text: str) -> str:
        return COMPUTED.sub(partial(_computed, self._values), VARIABLE.sub(self._value, text))

    def _value(self, match: re.Match[str]) -> str:
        name, sign = match[1] or match[4], match[2]
        values = self._given if name in {"@", "*"} or name.isdecimal() else self._values
        value = values.get(name)
        if sign is None or (value is None and name in values):
            return match[0] if value is None else self._read(value)
        is_set = bool(value) if ":" in sign else value is not None
        if is_set == ("+" not in sign):
            return value or ""
        otherwise = self._substituted(match[3].strip("\"'"))
        if "=" in sign:
            self._assign(name, "", otherwise)
        return otherwise

    def _truth(self, condition: str) -> Truth:
        """Return whether a condition holds: of numbers, of words, or of an empty word."""
        if (said := self._substituted(condition).strip()) in {"true", "false"}:
            return said == "true"
        words = [word for word in re.findall(WORD, condition) if word.strip("[]")]
        if len(words) > MOST_WORDS or re.sub(WORD, "", condition).strip():  # what is left are parentheses
            return None
        return _holds([self._substituted(word.strip("\"'")) for word in words])


def _holds(words: list[str]) -> Truth:
    for sign in ("||", "-o", "&&", "-a"):
        if sign in words:
            at, settling = words.index(sign), sign in {"||", "-o"}
            both = {_holds(words[:at]), _holds(words[at + 1 :])}
            return settling if settling in both else None if None in both else not settling
    is_known = not any(re.search(r"[$`*?(\[]", word) for word in words)
    match words:
        case ["!" | "test" as sign, *others]:
            return _negated(_holds(others)) if sign == "!" else _holds(others)
        case [first, compared, second] if compared in COMPARISONS and first.isdecimal() and second.isdecimal():
            return COMPARISONS[compared](int(first[:18]), int(second[:18]))
        case [first, "=" | "==" | "!=" as sign, second] if is_known:
            return (first == second) == (sign != "!=")
        case ["-z" | "-n" as test, word] if is_known:
            return (word == "") == (test == "-z")
    return None


def _negated(truth: Truth) -> Truth:
    return None if truth is None else not truth


def _computed(known: Mapping[str, str | None], match: re.Match[str]) -> str:
    """Return the value of whole numbers combined; the text itself if it is unknown."""
    text = re.sub(r"[A-Za-z_]\w*", lambda name: (known.get(name[0]) or "?")[:18], match[1])
    try:
        return str(_number(ast.parse(re.sub(r"\b0(?=\d)", "0o", text.strip()), mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError):
        return match[0]


def _number(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.BinOp() if type(node.op) in STEPS:
            return STEPS[type(node.op)](_number(node.left), _number(node.right))
    raise ValueError(node)
