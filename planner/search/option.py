"""An option of planning, defined once: its command-line flag, its help, and how to read its value."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from planner.errors import PlanError
from planner.search.coarse.coarsen import Ties

RULES = tuple(rule.name for rule in fields(Ties))
RULES_TEXT = f"all, none or rules among {', '.join(RULES)}"


@dataclass(frozen=True, slots=True)
class Option:
    """An option as commands show it; `read` converts command-line text or a Python value, and raises PlanError.

    `least` applies to whole numbers, `choices` to names. A `repeated` option is read from a list.
    """

    flag: str
    help: str
    read: Callable[[Any], Any] = lambda value: value
    metavar: str | None = None
    least: int | None = None
    choices: Sequence[str] = ()
    default: Any = None
    repeated: bool = False


def described(flag: str, meaning: str, **details: Any) -> dict[str, Option]:
    """Return the metadata of a record's field that is an option; `details` are fields of `Option`."""
    return {"option": Option(flag, meaning, **details)}


def options_of(record: type) -> dict[str, Option]:
    """Return the options among a record's fields, by name, with the fields' defaults."""
    declared = (field for field in fields(record) if "option" in field.metadata)
    return {field.name: replace(field.metadata["option"], default=field.default) for field in declared}


def whole_numbers(least: int, example: str) -> Callable[[Any], Any]:
    """Return a reader of whole numbers from `least`, as in `4,2`; it converts lists to tuples."""

    def read(value: Any) -> Any:
        if not isinstance(value, str):
            return tuple(value) if isinstance(value, list) else value
        parts = value.split(",")
        if not all(re.fullmatch(r" *[0-9]{1,9} *", part) and int(part) >= least for part in parts):
            raise PlanError(f"expected whole numbers of at least {least}, such as {example}, found {value!r}")
        return tuple(map(int, parts))

    return read


def read_rules(value: Any) -> tuple[str, ...]:
    """Return the coarsening rules named by `elementwise,updates`, a list of names, `all` or `none`."""
    names = [name.strip() for name in value.split(",")] if isinstance(value, str) else value
    if names in (["all"], ["none"]):
        return RULES if names == ["all"] else ()
    if not isinstance(names, list | tuple) or not all(name in RULES for name in names):
        raise PlanError(f"expected {RULES_TEXT}, found {value!r}")
    return tuple(names)


def read_ties(value: Any) -> Ties | None:
    """Return the Ties to apply, as `read_rules` reads them; None means the default."""
    return value if value is None or isinstance(value, Ties) else Ties.only(read_rules(value))
