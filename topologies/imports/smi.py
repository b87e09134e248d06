"""The matrix that `nvidia-smi topo -m` prints, and the tree of switches derived from it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain, combinations

from topologies.imports.parts import MOST, SOCKET_LINKS, Parts
from topologies.schema import TopologyError

CLOSENESS = {"PIX": 0, "PXB": 1, "PHB": 2, "NODE": 3, "SYS": 4, "SOC": 4}
SOCKETS = CLOSENESS["SYS"]
KINDS = ("pcie", "pcie", "bridge", "cpu")
"""The node that joins devices of each closeness."""

AFFINITIES = ("CPU", "NUMA", "GPU")  # first words of the columns after the matrix

_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_NAME = re.compile(r"GPU\d+|NIC\d+|mlx\d+_\w+|\w+_\d+")
_NVLINKS = re.compile(r"NV(\d+)")


class _Matrix:
    """The matrix: its names, the connection of every pair, and each row's processor affinity."""

    def __init__(self, text: str) -> None:
        lines = [line.split() for line in _ESCAPE.sub("", text).splitlines() if not line.lstrip().startswith("#")]
        header = next((words for words in lines if words[:1] == ["GPU0"] and _is_column(words[1:2])), None)
        if header is None:
            raise TopologyError("expected a header GPU0 GPU1 ... followed by a row for each, found none")
        self.names = list(_columns(header))
        rows = {words[0]: words[1:] for words in lines[lines.index(header) + 1 :] if words and words[0] in self.names}
        self.between: dict[tuple[str, str], str] = {}
        self.affinity: dict[str, str] = {}
        for name in self.names:
            if name not in rows:
                raise TopologyError(f"expected a row for {name}, found none")
            self._read_row(name, rows[name])
        self.hides_paths = any(map(_count, self.between.values()))

    def _read_row(self, name: str, words: Sequence[str]) -> None:
        if len(words) < len(self.names):
            raise TopologyError(f"{name}: expected {len(self.names)} entries, found {len(words)}")
        for other, word in zip(self.names, words, strict=False):
            if (word == "X") != (name == other) or (word not in CLOSENESS and not _count(word) and word != "X"):
                listed = "X" if name == other else f"{', '.join(CLOSENESS)} or NV#"
                raise TopologyError(f"{name}, {other}: expected {listed}, found {word!r}")
            if self.between.get((other, name), word) != word:
                raise TopologyError(
                    f"{name}, {other}: expected the same both ways, found {word!r} and {self.between[other, name]!r}"
                )
            self.between[name, other] = word
        nearest = min(zip(words, self.names, strict=False), key=lambda pair: CLOSENESS.get(pair[0], SOCKETS))[1]
        self.affinity[name] = next(iter(words[len(self.names) :]), self.affinity.get(nearest, ""))


class MatrixReader:
    """Read a matrix; raise `TopologyError` if it is incomplete or no tree explains it."""

    def __init__(self, text: str, parts: Parts) -> None:
        self.matrix, self.parts = _Matrix(text), parts
        self.nodes: dict[str, str] = {}

    def read(self) -> None:
        """Add all parts."""
        names = self.matrix.names
        for name in names:
            is_gpu = name.startswith("GPU")
            self.nodes[name] = self.parts.add_gpu(len(self.parts.devices)) if is_gpu else self.parts.add_switch("nic")
        generation = self.parts.generation()
        self.parts.note(f"The matrix gives no speeds: PCIe links are assumed to be generation {generation}, 16 lanes.")
        groups = [[name] for name in names]
        tops = dict(self.nodes)  # the highest node above each name
        for closeness in range(SOCKETS):
            groups = self._join(groups, tops, closeness)
        sockets = [tops[group[0]] for group in groups]
        if len(sockets) > 1:
            self.parts.note(f"It names no processors: links between them are assumed to be {SOCKET_LINKS[generation]}.")
        self.parts.join_sockets(sockets, SOCKET_LINKS[generation])
        self._join_nvlinks([name for name in names if name.startswith("GPU")])

    def _join(self, groups: list[list[str]], tops: dict[str, str], closeness: int) -> list[list[str]]:
        """Merge groups of this closeness under one node each; a processor node is added even for a single member."""
        joined = self._merged(groups, closeness)
        for members in joined:
            below = list(dict.fromkeys(tops[name] for name in members))
            if len(below) == 1 and closeness < SOCKETS - 1:
                continue
            node = self.parts.add_switch(KINDS[closeness])
            for child in below:
                ends_here = child in self.nodes.values() and child.startswith("gpu")
                self.parts.link(child, node, self.parts.pcie(self.parts.generation(), 16, uplink=not ends_here))
            tops.update(dict.fromkeys(members, node))
        return joined

    def _merged(self, groups: list[list[str]], closeness: int) -> list[list[str]]:
        """Merge groups of this closeness; in a tree, no two members of a merged group are further apart."""
        waiting, joined = [list(group) for group in groups], []
        while waiting:
            group = waiting.pop(0)
            for a in group:  # `group` grows during the loop
                near = [other for other in waiting if any(self._closeness(a, b) <= closeness for b in other)]
                waiting = [other for other in waiting if other not in near]
                group.extend(chain(*near))
            for a, b in combinations(group, 2):
                if (word := self.matrix.between[a, b]) in CLOSENESS and self._closeness(a, b) > closeness:
                    raise TopologyError(f"{a}, {b}: expected closer, to agree with other entries, found {word}")
            joined.append(group)
        return joined

    def _closeness(self, a: str, b: str) -> int:
        """Return how close two devices are over PCIe; if an NVLink hides it, compare their processors instead.

        Virtual machines give each GPU of a switch of NVLinks a PCIe root of its own: SYS does not separate those of one
        processor.
        """
        matrix, word = self.matrix, self.matrix.between[a, b]
        same = matrix.affinity[a] == matrix.affinity[b]
        if word in CLOSENESS and not (
            CLOSENESS[word] == SOCKETS and matrix.hides_paths and same and matrix.affinity[a]
        ):
            return CLOSENESS[word]
        self.parts.note("NVLinks hide the PCIe paths: GPUs of the same processor are attached to it one by one.")
        if word in CLOSENESS:
            self.parts.note("Some devices of one processor are SYS from each other: all are attached to it.")
        return SOCKETS - 1 if same else SOCKETS

    def _join_nvlinks(self, gpus: Sequence[str]) -> None:
        counts = {pair: count for pair in combinations(gpus, 2) if (count := _count(self.matrix.between[pair]))}
        if not counts:
            return
        total = {gpu: sum(count for pair, count in counts.items() if gpu in pair) for gpu in gpus}
        kinds = self.parts.nvlinks(self.nodes[gpus[0]])
        if max(total.values()) <= kinds.count or kinds.direct == kinds.switched:
            for (a, b), count in counts.items():
                self.parts.link(self.nodes[a], self.nodes[b], kinds.direct, count)
            return
        kinds = self.parts.nvlinks(self.nodes[gpus[0]], switched=True)
        switch = self.parts.add_switch("nvswitch")
        self.parts.note(
            f"The matrix counts more NVLinks per GPU than its {kinds.count}: they are assumed to go to a switch."
        )
        for gpu in gpus:
            most = max((count for pair, count in counts.items() if gpu in pair), default=0)
            if most:
                self.parts.link(self.nodes[gpu], switch, kinds.switched, most)


def _columns(header: Sequence[str]) -> Iterator[str]:
    """Yield the names up to the affinity columns."""
    seen: set[str] = set()
    for word in header:
        if word in AFFINITIES:
            return
        if not _NAME.fullmatch(word) or word in seen or len(seen) >= MOST:
            raise TopologyError(f"expected unique GPU and adapter names above the matrix, found {word!r}")
        seen.add(word)
        yield word


def _is_column(words: Sequence[str]) -> bool:
    return all(_NAME.fullmatch(word) or word in AFFINITIES for word in words)


def _count(word: str) -> int:
    """Return the number of NVLinks that a word stands for, at most 1024; 0 if it is none."""
    match = _NVLINKS.fullmatch(word)
    return int(match[1]) if match and len(match[1]) < 5 and int(match[1]) <= 1024 else 0
