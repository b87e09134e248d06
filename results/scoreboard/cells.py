"""How a cell of a table is read: numbers with units, counts, switches and words, in the spellings of many."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from planner.errors import InputError
from tensor_partitioner.display import nearest

Cell = int | float | bool | str


class SetError(InputError):
    """A set of measured runs is not as it should be: says where, what was expected and what was found."""


MISSING = {"", "-", "--", "\u2013", "\u2014", "?", "na", "n/a", "nan", "null", "unknown", "not said", "tbd"}
"""Cells that say nothing."""

FAILED = re.compile(r"\b(oom|out[ _-]?of[ _-]?memory)\b", re.IGNORECASE)
BROKEN = re.compile(r"^(x|✗|fail(ed|ure)?|error|crash(ed)?|time[- ]?out|inf|killed|skip(ped)?|pending)$", re.IGNORECASE)
"""Cells of runs that did not end, for want of memory or for another reason."""

UNITS: dict[str, dict[str, float]] = {
    "s": {"s": 1.0, "sec": 1.0, "secs": 1.0, "second": 1.0, "seconds": 1.0, "ms": 1e-3, "msec": 1e-3,
          "millisecond": 1e-3, "milliseconds": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0, "minutes": 60.0},
    "bytes": {"bytes": 1.0, "b": 1.0, "kb": 1e3, "kib": 2.0**10, "mb": 1e6, "mib": 2.0**20, "gb": 1e9, "gib": 2.0**30,
              "tb": 1e12, "tib": 2.0**40},
    "flop/s": {"tflops": 1e12, "tflop/s": 1e12, "tflop": 1e12, "gflops": 1e9, "gflop/s": 1e9, "pflops": 1e15,
               "pflop/s": 1e15},
    "share": {"%": 1e-2, "percent": 1e-2, "share": 1.0},
}  # fmt: skip
"""Units of each dimension, in its own."""

DEFAULT_UNIT = {"s": 1.0, "bytes": 2.0**30, "flop/s": 1e12, "share": 1.0}
"""What a bare number is taken for: seconds, GiB, Tflop/s, a share (a percentage where it is above 1.5)."""

NUMBER = re.compile(
    r"([-+]?(?:\d{1,3}(?:[,_]\d{3})+(?:\.\d*)?|\d+(?:[.,]\d*)?|\.\d+)(?:e[-+]?\d+)?)\s*([^\d\s(]*)", re.IGNORECASE
)
"""A number with its unit: 1,234.5 ms, 2.5e3, 2,5."""

THOUSANDS = re.compile(r"(?<=\d)[,_](?=\d{3}(?:\D|$))")
MULTIPLES = {"": 1, "k": 1_000, "m": 10**6, "b": 10**9}


def words(text: str) -> str:
    """Return a name without case and punctuation, which is how names are compared: "# GPUs" and "gpus" are one."""
    return " ".join(re.findall(r"[a-z0-9%]+", text.lower()))


def read_number(text: str, units: Mapping[str, float]) -> tuple[float, float | None]:
    """Return a number and the scale of the unit written behind it, None for none; SetError for what is no number."""
    match = NUMBER.match(text)
    if match is None:
        raise SetError(f"expected a number, found {text!r}")
    number, unit = read_float(match[1]), match[2].lower().rstrip(".,;")
    if unit and unit not in units:
        raise SetError(f"expected a number with a unit of {', '.join(units)}, found {text!r}")
    return number, units.get(unit)


def read_float(text: str) -> float:
    """Read digits with commas between thousands, or one for a point."""
    return float(THOUSANDS.sub("", text).replace(",", "."))


def read_count(text: str) -> int:
    """Read a whole number from 1: 51200, 51,200, 51.2k, 8.0."""
    match = re.fullmatch(r"(\d[\d,_]*(?:\.\d+)?)\s*([kmb]?)", text.strip().lower())
    digits = THOUSANDS.sub("", match[1]) if match else ","
    value = float(digits) * MULTIPLES[match[2]] if match and digits.isascii() and "," not in digits else 0.0
    if not 1 <= value < math.inf or abs(value - round(value)) > 1e-6 * value:
        raise SetError(f"expected a whole number from 1, found {text!r}")
    return round(value)


def read_degree(text: str) -> int:
    """Read a degree of parallelism, of which 0 is none, as 1 is; or "best"."""
    return 1 if text.strip() in {"0", "0.0"} or words(text) in {"none", "no"} else read_count(text)


def read_share(text: str) -> float:
    """Read a share from 0 to below 1."""
    number, scale = read_number(text, UNITS["share"])
    if not 0 <= number * (scale or 1.0) < 1:
        raise SetError(f"expected a share from 0 to below 1, found {text!r}")
    return number * (scale or 1.0)


def read_factor(text: str) -> float:
    """Read a number above 0."""
    number, _ = read_number(text, {})
    if not number > 0:
        raise SetError(f"expected a number above 0, found {text!r}")
    return number


SWITCH = dict.fromkeys(("1", "1 0", "true", "yes", "y", "on", "x"), True) | dict.fromkeys(
    ("0", "0 0", "false", "no", "n", "off", "none"), False
)


def read_switch(text: str) -> bool:
    """Read yes or no, in the words of many."""
    try:
        return SWITCH[words(text)]
    except KeyError:
        raise SetError(f"expected yes or no, found {text!r}") from None


def one_of(meanings: Mapping[str, Cell]) -> Callable[[str], Cell]:
    """Return what reads one of these words; an error names the first of each value."""
    known = {words(word): value for word, value in meanings.items()}
    first: dict[Cell, str] = {}
    for word, value in meanings.items():
        first.setdefault(value, word)

    def read(text: str) -> Cell:
        try:
            return known[words(text)]
        except KeyError:
            expected = ", ".join(first.values())
            raise SetError(f"expected {expected}, found {text!r}{nearest(words(text), known)}") from None

    return read


def spelled(meaning: Mapping[Cell, str]) -> Callable[[str], Cell]:
    """Return what reads one of several words for each value; a value that is no word of another is its own, too."""
    itself = {str(value): value for value in meaning}
    return one_of(itself | {word: value for value, text in meaning.items() for word in text.split(", ") if word})


def best_or(read: Callable[[str], Cell]) -> Callable[[str], Cell]:
    """Return what reads as `read` does, and "best" for what was chosen so that it is fastest and not published."""
    return lambda text: "best" if words(text) == "best" else read(text)


def read_text(text: str) -> str:
    """Read any text."""
    return text.strip()


@dataclass(frozen=True, slots=True)
class Quantity:
    """What reads a quantity of a dimension; `unit` is the scale of a bare number, None for the usual one."""

    dimension: str
    unit: float | None = None

    def __call__(self, text: str) -> float:
        number, scale = read_number(text, UNITS[self.dimension] if self.dimension else {})
        if not self.dimension:
            scale = 1.0
        elif scale is None:
            scale = self.unit or DEFAULT_UNIT[self.dimension]
            if self.dimension == "share" and self.unit is None and number > 1.5:
                scale = 1e-2
        if not (0 < number * scale < math.inf):
            raise SetError(f"expected a number above 0, found {text!r}")
        if self.dimension == "share" and number * scale > 1:
            raise SetError(f"expected a share of at most 100%, found {text!r}")
        return number * scale
