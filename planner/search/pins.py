"""Pins: requirements on the placements of tensors and the choices of nodes.

A pin names tensors or nodes by a glob and gives their options at every step: `l*.mlp.*=S0`, `embedding.w=S0,R`,
`l*.mlp.up=i|j`. Placements belong to tensors; all other options are choices of nodes. A tensor with another name in a
state dict has both names. Words of named parallelism, as in `tp=4` or `recompute=full`, are pins too.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from fnmatch import fnmatchcase
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

from planner.errors import PlanError
from planner.graph.ir import Graph
from planner.layout import TERMS, Shard, parse_placement
from planner.parallel import Parallel
from planner.search.coarse import Name, TensorVariable, Variable
from planner.search.costs.domains import operands_carried_by_choice
from tensor_partitioner.display import nearest
from topologies.reading import read_record
from topologies.schema import TopologyError

ANY = "any"
"""The option that leaves a step open."""

NEAREST = 5
"""Number of globs suggested for a pin that matches nothing."""

DEGREES = {field.name.replace("_", "-"): field for field in fields(Parallel) if field.default is not False}
"""Words of named parallelism that a pin may give, as in `tp=4` or `recompute=full`: those with a value."""

EVERY_AXIS = {"pp": 2, "dp": 2, "tp": 2}
"""Degrees that are valid with every value of every other word."""

Options = Sequence[Sequence[object]]
"""Options of a variable, by step."""

Choice = TypeVar("Choice")


class PinError(PlanError):
    """Pins that no plan of a space satisfies; other ways or other placements may allow them."""


@dataclass(frozen=True, slots=True)
class Pin:
    """Options that everything matching `pattern` must have or, if it `forbids`, must not have, at every step.

    `steps` holds the options of each step, or a single entry for all steps; None leaves a step open.
    """

    pattern: str
    steps: tuple[frozenset[str] | None, ...]
    forbids: bool = False
    text: str = ""

    @classmethod
    def parse(cls, text: str, *, forbids: bool = False) -> Pin:
        """Read `GLOB=OPTION` or `GLOB=OPTION,OPTION,...`, one per step, with `|` between alternatives."""
        pattern, equals, options = text.rpartition("=")
        steps = [[option.strip() for option in step.split("|")] for step in options.split(",")]
        if not equals or not pattern.strip() or not all(map(all, steps)):
            raise PlanError(f"expected GLOB=PLACEMENT, as in 'l*.mlp.up.w=S0', found {text!r}")
        pin = cls(pattern.strip(), tuple(None if ANY in step else frozenset(step) for step in steps), forbids, text)
        if len(set(map(_is_placement, pin.options))) > 1:
            raise PlanError(f"{pin}: found both placements (of tensors) and choices (of nodes); write two pins")
        if not pin.options:
            raise PlanError(f"{pin}: expected a placement at some step, found only {ANY}")
        return pin

    @property
    def options(self) -> frozenset[str]:
        """All options that it names."""
        return frozenset().union(*(step for step in self.steps if step is not None))

    @property
    def kind(self) -> str:
        """The kind of object that it names: "tensor" or "node"."""
        return "tensor" if _is_placement(min(self.options)) else "node"

    def allows(self, option: str, step: int) -> bool:
        """Return True if an option may be chosen at a step."""
        named = self.steps[step if len(self.steps) > 1 else 0]
        return named is None or any(_is_option(name, option) for name in named) != self.forbids

    def matching(self, names: Mapping[str, str]) -> list[str]:
        """Return the matches among `names`, which map names to canonical names."""
        if self.pattern in names:
            return [names[self.pattern]]
        return list(dict.fromkeys(names[name] for name in names if fnmatchcase(name, self.pattern)))

    @property
    def asked(self) -> str:
        """The pin as given: `embedding.w=R`, `not embedding.w=R`."""
        return f"not {self.text}" if self.forbids else self.text

    def __str__(self) -> str:
        return f"{'forbid' if self.forbids else 'pin'} '{self.text}'"


@dataclass(frozen=True, slots=True)
class Degree:
    """A word of named parallelism: a field of `Parallel` and its value.

    Raises PlanError for an invalid value.
    """

    axis: str
    degree: int | str

    def __post_init__(self) -> None:
        """Raise PlanError if named parallelism rejects the value."""
        groups = {"dp": self.degree or 1} if self.axis == "ep" else {}
        Parallel(**EVERY_AXIS | groups | {self.axis: self.degree})  # type: ignore[arg-type]

    @property
    def asked(self) -> str:
        """The pin as given."""
        return f"{self.axis.replace('_', '-')}={self.degree}"

    def __str__(self) -> str:
        return f"pin '{self.asked}'"


def _is_placement(option: str) -> bool:
    try:
        parse_placement(option)
    except PlanError:
        return False
    return True


def _is_option(named: str, option: str) -> bool:
    """Return True if a pin's option names an option of the search; `+` names every option that carries terms."""
    return named == option or (named == TERMS and bool(operands_carried_by_choice(option)))


def read_pins(value: Any) -> tuple[Pin | Degree, ...]:
    """Read pins from text, a list of texts, or a mapping from globs to options.

    Raises PlanError for conflicting words.
    """
    pins = tuple(_read_pin(text) for text in _texts(value))
    words: dict[str, Degree] = {}
    for pin in pins:
        if isinstance(pin, Degree) and (other := words.setdefault(pin.axis, pin)) != pin:
            raise PlanError(f"{other} and {pin} conflict; give only one")
    return pins


def read_forbids(value: Any) -> tuple[Pin, ...]:
    """Read forbidden options, as `read_pins` does."""
    return tuple(text if isinstance(text, Pin) else Pin.parse(text, forbids=True) for text in _texts(value))


def _texts(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        entries = ((name, given if isinstance(given, list | tuple) else [given]) for name, given in value.items())
        value = [f"{name}={option}" for name, options in entries for option in options]
    for text in value or () if isinstance(value, Iterable | None) and not isinstance(value, str) else [value]:
        if not isinstance(text, str | Pin | Degree):
            raise PlanError(f"expected GLOB=PLACEMENT, as in 'l*.mlp.up.w=S0', found {text!r}")
        yield text


def _read_pin(text: str | Pin | Degree) -> Pin | Degree:
    if not isinstance(text, str):
        return text
    word, _, value = (part.strip() for part in text.partition("="))
    if (field := DEGREES.get(word)) is None:
        return Pin.parse(text)
    if isinstance(field.default, str):
        return Degree(field.name, value)
    return Degree(field.name, int(value)) if re.fullmatch(r"[0-9]{1,7}", value) else Pin.parse(text)


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    """Contents of a file of pins."""

    pins: dict[str, str | int | list[str]] = {}
    forbids: dict[str, str | list[str]] = {}


def load_pins(path: str | Path) -> tuple[tuple[Pin | Degree, ...], tuple[Pin, ...]]:
    """Return the pins and forbids of a YAML file: `pins: {embedding.w: S0}` and `forbids: {l*.mlp.*.w: [R, S1]}`."""
    try:
        record = read_record(Path(path), _File)
    except TopologyError as error:
        raise PlanError(str(error)) from error
    return read_pins(record.pins), read_forbids(record.forbids)


class Restrictions(Struct, frozen=True, eq=False):
    """Allowed options of pinned variables of a coarse graph, as text: [variable][step]."""

    of_variable: Mapping[int, tuple[frozenset[str], ...]] = {}

    def kept(self, v: int, step: int, options: tuple[Choice, ...]) -> tuple[Choice, ...]:
        """Return those of a variable's options at a step that the pins allow."""
        allowed = self.of_variable.get(v)
        return options if allowed is None else tuple(option for option in options if str(option) in allowed[step])


NO_RESTRICTIONS = Restrictions()


class Pinned(Struct, frozen=True, eq=False):
    """The pins of each tensor and node that some pin matches."""

    pins: tuple[Pin, ...]
    of_name: Mapping[Name, tuple[int, ...]]

    def restrictions(
        self, variables: Sequence[Variable], variable_of: Mapping[Name, int], options_of: Callable[[int], Options]
    ) -> Restrictions:
        """Return the allowed options of pinned variables; `options_of` gives a variable's options without pins.

        Raises PinError, naming the pins, if they leave no option.
        """
        of_variable: dict[int, set[int]] = defaultdict(set)
        for name, numbers in self.of_name.items():
            of_variable[variable_of[name]].update(numbers)
        return Restrictions(
            {
                v: tuple(
                    self._kept(variables[v], step, list(map(str, options)), [self.pins[i] for i in sorted(numbers)])
                    for step, options in enumerate(options_of(v))
                )
                for v, numbers in of_variable.items()
            }
        )

    def _kept(self, variable: Variable, step: int, options: Sequence[str], pins: Sequence[Pin]) -> frozenset[str]:
        kept = frozenset(option for option in options if all(pin.allows(option, step) for pin in pins))
        if not kept:
            raise PinError(self._refusal(variable, step, options, pins))
        return kept

    def _refusal(self, variable: Variable, step: int, options: Sequence[str], pins: Sequence[Pin]) -> str:
        """Return a message that names the pins that leave no option: one alone, a conflicting pair, or all of them."""
        groups = [*([pin] for pin in pins), *combinations(pins, 2), tuple(pins)]
        culprits = next(g for g in groups if not any(all(p.allows(o, step) for p in g) for o in options))
        members = self._members(variable, culprits)
        where = f"at step {step + 1}, {' and '.join(members)} may have {', '.join(options)}"
        if len(culprits) == 1:
            return f"{culprits[0]} leaves no option: {where}"
        tied = ", tied to each other (--untie)" if len(set(members)) > 1 else ""
        return f"{' and '.join(map(str, culprits))} conflict: {where}{tied}"

    def _members(self, variable: Variable, pins: Iterable[Pin]) -> list[str]:
        kind = "tensor" if isinstance(variable, TensorVariable) else "node"
        members = []
        for pin in pins:
            numbered = self.pins.index(pin)
            members.append(next(m for m in variable.members if numbered in self.of_name.get((kind, m), ())))
        return list(dict.fromkeys(f"{kind} {member}" for member in members))


def pinned(graph: Graph, pins: Iterable[Pin], steps: int) -> Pinned | None:
    """Return which tensors and nodes have which pins; None if there are no pins.

    Raises PlanError for a glob that matches nothing and for a dimension that no matching tensor has, and PinError for
    pins with a wrong number of steps.
    """
    of_options = tuple(pins)
    of_name: dict[Name, list[int]] = defaultdict(list)
    names = {"tensor": _tensor_names(graph), "node": {node.name: node.name for node in graph.nodes}}
    for number, pin in enumerate(of_options):
        matching = pin.matching(names[pin.kind])
        if not matching:
            raise PlanError(f"{pin}: no {pin.kind} matches{_meant(pin, names[pin.kind], graph)}")
        for name in matching:
            of_name[pin.kind, name].append(number)
        if pin.forbids and pin.kind == "tensor":
            _check_dimensions(pin, {name: graph.tensors[name].shape for name in matching})
        if len(pin.steps) not in (1, steps):
            raise PinError(f"{pin}: expected one placement, or one for each of {steps} steps, found {len(pin.steps)}")
    return Pinned(of_options, {name: tuple(numbers) for name, numbers in of_name.items()}) if of_name else None


def _meant(pin: Pin, names: Mapping[str, str], graph: Graph) -> str:
    """Return a hint for a pin that matches nothing: close names, else the nearest globs that match.

    The globs are of weights, or of nodes of the forward pass.
    """
    if close := nearest(pin.pattern, names):
        return close
    if pin.kind == "tensor":
        usual = {name for name, tensor in graph.tensors.items() if tensor.is_parameter}
    else:
        updated = set(graph.updates.values())
        usual = {node.name for node in graph.nodes if node.forward is None and updated.isdisjoint(node.outputs)}
    globs = dict.fromkeys(re.sub(r"\d+", "*", name) for name, meant in names.items() if meant in usual)
    return f"; nearest are {', '.join(get_close_matches(pin.pattern, globs, NEAREST, 0))}"


def _check_dimensions(pin: Pin, shapes: Mapping[str, Sequence[int]]) -> None:
    """Raise PlanError if a forbidden dimension exists in no matching tensor."""
    most = max(map(len, shapes.values()))
    for option in sorted(pin.options):
        placement = parse_placement(option)
        if isinstance(placement, Shard) and placement.dim >= most:
            name, shape = max(shapes.items(), key=lambda named: len(named[1]))
            raise PlanError(f"{pin}: expected a dimension below {most}, found {option}; {name} has shape {list(shape)}")


def _tensor_names(graph: Graph) -> dict[str, str]:
    """Map every name of a tensor, including its name in a state dict, to the tensor's name."""
    entries = {name: entry.tensor for name, entry in graph.entries.items() if entry.tensor is not None}
    return entries | {name: name for name in graph.tensors}


def check_degrees(pins: Iterable[Pin | Degree], parallel: Parallel | None) -> None:
    """Raise PlanError for a pinned degree without named parallelism, or with another degree."""
    for pin in pins:
        if not isinstance(pin, Degree):
            continue
        if parallel is None:
            raise PlanError(f"{pin}: a degree needs named parallelism, as in --parallel tp=4,dp=2")
        if (given := getattr(parallel, pin.axis)) != pin.degree:
            raise PlanError(f"{pin}: differs from --parallel, which has {given}")
