"""Changes at random: of nested data, of texts by their words and lines, and of bytes."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

from results.mutants.watch import CANARY

HOSTILE = f"__import__('os').system('touch /tmp/{CANARY}')"
DIGITS, DEEP = "<digits>", "<deep>"
"""Words for what JSON's writer does not write: an integer of many digits, and deep nesting."""

EXTREMES = {f'"{DIGITS}"': "9" * 5000, f'"{DEEP}"': "[" * 20_000 + "]" * 20_000}

VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 3, 7, 2**31, 2**63, 2**70, 10**30, 1.5, 1e-320, 1e400, float("nan")),
    *("", "S0", "S9", "R", "P+", "k", "W", "\n", "\x00", "\ud800", "\u0661", "1e9999", "x" * 100_000, HOSTILE),
    *("../../etc/passwd", "/etc/shadow", "aten.from_file", "aten.set_", "os.system", "nan", "true"),
    *([], [[]], [2, 2], [1] * 1000, {}, {"a": 1}, {"": None}, DIGITS, DEEP),
)

WORDS = (
    *("0", "-1", "1e-320", "1e400", "nan", "inf", "-0", "9" * 20, "9" * 5000, "*", "*3", "*999999", "true", "none"),
    *("", "x" * 400, "\x00", "\ufeff", '"', "'", "[", "{", "<", "</a>", "&a;", "<!ENTITY", "$(touch x)", "${A:-9}"),
    *("&a [*a]", "!!python/object/apply:os.system [x]", "!!binary x", "../../x", HOSTILE, "-" * 5000, "((((" * 500),
)

Change = Callable[[bytes, random.Random], bytes]


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of everything within nested data."""
    if isinstance(data, dict | list):
        for key in data if isinstance(data, dict) else range(len(data)):
            yield (*path, key)
            yield from places(data[key], (*path, key))


def changed_data(data: Any, chance: random.Random) -> Any:
    """Return a copy in which one to three places are replaced, removed, doubled, renamed, or take another's value."""
    data = json.loads(json.dumps(data))
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        paths = list(places(data))
        if not paths:
            break
        path, other = chance.choice(paths), chance.choice(paths)
        inner = _inner(data, path)
        match chance.choice(("replace", "replace", "replace", "remove", "double", "rename", "other")):
            case "remove":
                del inner[path[-1]]
            case "double" if isinstance(inner, list):
                inner.insert(path[-1], deepcopy(inner[path[-1]]))
            case "rename" if isinstance(inner, dict):
                inner[chance.choice((f"{path[-1]}x", "", "\ud800", HOSTILE))] = inner.pop(path[-1])
            case "other":
                inner[path[-1]] = deepcopy(_inner(data, other)[other[-1]])
            case _:
                inner[path[-1]] = deepcopy(chance.choice(VALUES))
    return data


def _inner(data: Any, path: tuple[Any, ...]) -> Any:
    for key in path[:-1]:
        data = data[key]
    return data


def json_text(data: Any) -> bytes:
    """Write data as JSON, with what JSON's writer does not write."""
    text = json.dumps(data)
    for word, extreme in EXTREMES.items():
        text = text.replace(word, extreme)
    return text.encode()


def changed_json(content: bytes, chance: random.Random) -> bytes:
    """Change JSON as data or, seldom, as text or bytes."""
    if chance.random() < 0.15:
        return chance.choice((changed_text, changed_bytes))(content, chance)
    return json_text(changed_data(json.loads(content), chance))


def changed_text(content: bytes, chance: random.Random) -> bytes:
    """Return a text with one to three places cut, doubled, swapped or replaced."""
    text = content.decode(errors="replace")
    for _ in range(chance.randint(1, 3)):
        lines, words = text.splitlines(keepends=True), list(re.finditer(r"[\w.:/*+-]+", text))
        if not words:
            break
        word, line = chance.choice(words), chance.randrange(len(lines))
        match chance.choice(("word", "word", "word", "drop", "double", "many", "cut", "character")):
            case "word":
                text = text[: word.start()] + chance.choice(WORDS) + text[word.end() :]
            case "drop":
                text = "".join([*lines[:line], *lines[line + 1 :]])
            case "double":
                text = "".join([*lines[:line], lines[line], *lines[line:]])
            case "many":
                text = text[: word.start()] + word[0] * 1000 + text[word.end() :]
            case "cut":
                text = text[: chance.randrange(len(text))]
            case _:
                place = chance.randrange(len(text))
                text = text[:place] + chr(chance.randrange(1, 256)) + text[place + 1 :]
    return text.encode(errors="surrogatepass")


def changed_bytes(content: bytes, chance: random.Random) -> bytes:
    """Return bytes cut, or with some of them other ones."""
    damaged = bytearray(content[: chance.randrange(len(content) + 1)] if chance.random() < 0.3 else content)
    for _ in range(chance.randrange(1, 6)):
        if damaged:
            damaged[chance.randrange(len(damaged))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
    return bytes(damaged)
