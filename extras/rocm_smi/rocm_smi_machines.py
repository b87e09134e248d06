"""Import what `rocm-smi --showtopo` prints: the links between GPUs, and the processor of each."""

from __future__ import annotations

import re

from topologies.imports import MatrixReader, Parts
from topologies.schema import TopologyError

_ROCM_TABLE = "{} between two GPUs"
_ROCM_NODE = re.compile(r"GPU\[(\d+)\]\s*: \(Topology\) Numa Node: *(-?\d+)")


class RocmFormat:
    """The format, as `topo import` uses it."""

    title = "what rocm-smi --showtopo prints"

    def recognizes(self, text: str) -> bool:
        """Return whether a text is in this format."""
        return _ROCM_TABLE.format("Link Type") in text

    def read(self, text: str, parts: Parts) -> None:
        """Add the parts of a machine; raise `TopologyError` if the text is wrong."""
        MatrixReader(rocm_matrix(text), parts).read()


READER = RocmFormat()


def rocm_matrix(text: str) -> str:
    """Return the matrix of `rocm-smi --showtopo` as nvidia-smi writes one; NV1 stands for a direct link of xGMI.

    Its hops are 1 even where another GPU is between; only direct links have the least weight (AMD SMI, 15 per hop).
    """
    links, weights, node = _rocm_rows(text, "Link Type"), _rocm_rows(text, "Weight"), dict(_ROCM_NODE.findall(text))
    lines, direct = [" ".join((*links, "NUMA"))], ("", "")
    for name, words in links.items():
        if not len(words) == len(links) == len(weights.get(name, ())):
            raise TopologyError(f"{name}: expected {len(links)} link types and weights, found {len(words)}")
        pairs = list(zip(words, weights[name], strict=True))
        direct = direct if direct[0] else min((pair for pair in pairs if pair[0] == "XGMI"), default=direct)
        row = [name]
        for other, pair in zip(links, pairs, strict=True):
            near = "NODE" if node.get(name[3:]) == node.get(other[3:]) else "SYS"
            row.append("X" if other == name else "NV1" if pair == direct else near)
        lines.append(" ".join((*row, node.get(name[3:], ""))))
    return "\n".join(lines)


def _rocm_rows(text: str, title: str) -> dict[str, list[str]]:
    """Return the rows of a table by GPU; the next title begins with ====."""
    table = text.partition(_ROCM_TABLE.format(title))[2].lstrip("= \n").partition("====")[0]
    rows = [line.split() for line in table.splitlines()[1:]]
    return {words[0]: words[1:] for words in rows if words}
