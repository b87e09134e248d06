"""What is known of one operator of another framework: how it is described here, or why it is not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from results.operator_coverage.tables.composition import Composition, composition
from tdl.expr import Call, Coordinate, Element, Expr, OpaqueElement, walk
from tdl.operator import Description


@dataclass(frozen=True, slots=True)
class Entry:
    """An operator's composition (one application: described directly; several: from parts) or the reason for none."""

    text: str | None = None
    note: str = ""
    reason: str = ""

    @property
    def composition(self) -> Composition | None:
        """The parsed composition."""
        return None if self.text is None else composition(self.text)

    @property
    def described(self) -> str:
        """Say "directly", "from parts", or "no"."""
        found = self.composition
        return "no" if found is None else "directly" if len(found.applications) == 1 else "from parts"

    @property
    def kind(self) -> str | None:
        """Class of the operator, from what the analysis finds of its parts: the first of these that holds.

        "opaque": a part calls a function the analysis does not look into; "element-wise": every part is;
        "output reduction": a part may be split along an index that is reduced; else "other".
        """
        if self.composition is None:
            return None
        found = self.composition.descriptions()
        if any(calls_opaque(description) for description in found):
            return "opaque"
        if all(description.is_elementwise for description in found):
            return "element-wise"
        reduced = (strategy.reducer for description in found for strategy in description.strategies.values())
        return "output reduction" if any(reduced) else "other"

    @property
    def selects(self) -> bool:
        """Whether a part compares an index with a tensor's value."""
        return self.composition is not None and any(map(selects_by_value, self.composition.descriptions()))


def calls_opaque(description: Description) -> bool:
    """Whether an output is computed by a function that the analysis does not look into."""
    return any(isinstance(node, OpaqueElement) for output in description.outputs for node in walk(output.value))


COMPARISONS = {"equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "subtract"}


def selects_by_value(description: Description) -> bool:
    """Whether it compares an index with a tensor's value, which is how an index that is data is described."""
    calls = (node for output in description.outputs for node in walk(output.value) if isinstance(node, Call))
    return any(
        _has(mine, Coordinate) and not _has(mine, Element) and _has(other, Element)
        for call in calls
        if call.function in COMPARISONS
        for mine, other in (call.arguments, call.arguments[::-1])
    )


def _has(expression: Expr, kind: type[Expr]) -> bool:
    return any(isinstance(node, kind) for node in walk(expression))


KINDS = ("element-wise", "output reduction", "opaque", "other")
"""The classes that `Entry.kind` tells apart."""


def described(text: str, note: str = "") -> Entry:
    """Describe an operator by a composition."""
    return Entry(text, note)


def each(names: str, text: str, note: str = "") -> dict[str, Entry]:
    """Describe many operators by one text; `{}` in it stands for the operator's name.

    A name may be written `theirs=ours`; `{}` is then ours.
    """
    pairs = [name.partition("=")[::2] for name in names.split()]
    return {theirs: Entry(text.replace("{}", ours or theirs), note) for theirs, ours in pairs}


def left_out(names: str, reason: str) -> dict[str, Entry]:
    """Leave operators out, for one reason."""
    return {name: Entry(reason=reason) for name in names.split()}


def table(*families: Mapping[str, Entry]) -> Mapping[str, Entry]:
    """Join families in order; ValueError where a name occurs twice."""
    joined: dict[str, Entry] = {}
    for family in families:
        twice = joined.keys() & family.keys()
        if twice:
            raise ValueError(f"in two families: {', '.join(sorted(twice))}")
        joined.update(family)
    return MappingProxyType(joined)


def counts(entries: Iterable[Entry]) -> dict[str, int]:
    """Count entries: all, described, how, by class, and how many of the output reductions are selections by value."""
    found = list(entries)
    own = [entry for entry in found if entry.described != "no"]
    result = {"operators": len(found), "described": len(own)}
    result |= {how: sum(entry.described == how for entry in own) for how in ("directly", "from parts")}
    kinds = [entry.kind for entry in own]
    result |= {kind: kinds.count(kind) for kind in KINDS}
    selections = [entry for entry, kind in zip(own, kinds, strict=True) if kind == "output reduction" and entry.selects]
    return result | {"selection by value": len(selections)}
