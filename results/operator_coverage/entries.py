"""Operators of other frameworks: how each is described here, or why not; the tables are mxnet.yaml and aten.yaml."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from results.operator_coverage.composition import Composition, composition
from tdl.expr import Call, Coordinate, Element, Expr, OpaqueElement, walk
from tdl.operator import Description

HERE = Path(__file__).parent


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
        parsed = self.composition
        return "no" if parsed is None else "directly" if len(parsed.applications) == 1 else "from parts"

    @property
    def kind(self) -> str | None:
        """Class of the operator, from what the analysis finds of its parts: the first of these that holds.

        "opaque": a part calls a function the analysis does not look into; "element-wise": every part is;
        "output reduction": a part may be split along an index that is reduced; else "other".
        """
        if self.composition is None:
            return None
        descriptions = self.composition.descriptions()
        if any(calls_opaque(description) for description in descriptions):
            return "opaque"
        if all(description.is_elementwise for description in descriptions):
            return "element-wise"
        reduced = (strategy.reducer for description in descriptions for strategy in description.strategies.values())
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


def _read(file: str) -> Any:
    return yaml.safe_load((HERE / file).read_text())


def _entries(file: str) -> Mapping[str, Entry]:
    return {name: Entry(**row) for name, row in _read(file)["operators"].items()}


CATALOGS = {"MXNet 0.11.0": _entries("mxnet.yaml"), "core ATen 2.11": _entries("aten.yaml")}
TENSOR_FOLDER = frozenset(_read("mxnet.yaml")["folder"])
"""The operators that `src/operator/tensor/` of MXNet registers."""


def counts(entries: Iterable[Entry]) -> dict[str, int]:
    """Count entries: all, described, how, by class, and how many of the output reductions are selections by value."""
    listed = list(entries)
    own = [entry for entry in listed if entry.described != "no"]
    result = {"operators": len(listed), "described": len(own)}
    result |= {how: sum(entry.described == how for entry in own) for how in ("directly", "from parts")}
    kinds = [entry.kind for entry in own]
    result |= {kind: kinds.count(kind) for kind in KINDS}
    selections = [entry for entry, kind in zip(own, kinds, strict=True) if kind == "output reduction" and entry.selects]
    return result | {"selection by value": len(selections)}
