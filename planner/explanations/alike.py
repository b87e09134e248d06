"""What is alike in a graph's repeated segments, as one group under what its members' names have in common."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import takewhile

from planner.graph.ir import Graph
from planner.graph.repeats import SegmentPlace, repeats_of


class Alike:
    """Groups tensors and nodes that correspond to each other in the segments of a run; names are for people alone."""

    def __init__(self, graph: Graph) -> None:
        self._repeats = repeats_of(graph)
        self._places: Mapping[str, SegmentPlace] = {**self._repeats.tensors, **self._repeats.nodes}
        self._layers = {number: self._named(segments) for number, segments in enumerate(self._repeats.runs)}

    def group_of(self, name: str) -> Hashable:
        """Return what a tensor or node has in common with those that correspond to it, and with no other."""
        place = self._places.get(name)
        return name if place is None else (self._repeats.run_of(place.segment), place.position)

    def layer_of(self, name: str) -> str:
        """Return what the part of the network is called that a tensor or node belongs to, as `h.*` or `embedding`."""
        place = self._places.get(name)
        return name.partition(".")[0] if place is None else self._layers[self._repeats.run_of(place.segment)]

    def _named(self, segments: range) -> str:
        """Return what the names of each segment begin with, as one pattern."""
        names: dict[int, list[str]] = {segment: [] for segment in segments}
        for name, place in self._repeats.nodes.items():
            if place.segment in names:
                names[place.segment].append(name)
        begins = [_beginning(those).rpartition(".")[0] for those in names.values()]
        pattern = pattern_of(begins)
        return pattern if pattern.strip("*.") else "layers"


def pattern_of(names: Sequence[str]) -> str:
    """Return names as one glob: `h.*.mlp.weight`, `l*.mlp.up.w`.

    >>> pattern_of(["h.0.mlp.w", "h.1.mlp.w"]), pattern_of(["l8.up", "l9.up", "l10.up"]), pattern_of(["wte"])
    ('h.*.mlp.w', 'l*.up', 'wte')
    """
    parts = [name.split(".") for name in names]
    if len({*map(len, parts)}) > 1:
        return _joined(names)
    return ".".join(_joined(those) for those in zip(*parts, strict=True))


def _joined(texts: Iterable[str]) -> str:
    """Return texts as one, with a star for what lies between their common beginning and end."""
    different = sorted({*texts})
    if len(different) == 1:
        return different[0]
    start = _beginning(different)
    rests = [text[len(start) :][::-1] for text in different]
    return f"{start}*{_beginning(rests)[::-1]}"


def _beginning(texts: Iterable[str]) -> str:
    """Return what all texts begin with."""
    return "".join(letters[0] for letters in takewhile(lambda letters: len({*letters}) == 1, zip(*texts, strict=False)))
