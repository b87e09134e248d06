"""SoyBean's one-cut tiling algorithm as its Section 4.2.2 states it: breadth-first levels and dynamic programming.

Written from the paper's equations alone: costs are equation 2 on sets of elements, the search is equations 4 and 5.
Nothing here uses the planner's search.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np

from planner.graph import Graph

Shape = tuple[int, int]
BASIC = "RCr"
ALIGNED = (("R", "r", "R"), ("r", "C", "C"), ("C", "R", "red"))
"""Figure 6: tilings of X, Y and Z in which no byte moves; `red` is two partial results."""


@dataclass(frozen=True, slots=True)
class Product:
    """Z = X Y: tensors' names, and whether X or Y is read transposed."""

    x: str
    y: str
    z: str
    transposed: tuple[bool, bool]

    @property
    def tensors(self) -> tuple[str, str, str]:
        """The names of all three."""
        return self.x, self.y, self.z


def products_of(graph: Graph) -> list[Product]:
    """Return a graph's nodes, all of which must be matrix products."""
    return [
        Product(x, y, z, (bool(node.attrs.get("transpose_a")), bool(node.attrs.get("transpose_b"))))
        for node in graph.nodes
        for (x, y), (z,) in [(node.inputs, node.outputs)]
    ]


def _tile(shape: Shape, tiling: str, device: int) -> np.ndarray:
    mask = np.zeros(shape, dtype=bool)
    if tiling == "r":
        mask[:] = True
    else:
        axis = "RC".index(tiling)
        half = shape[axis] // 2
        mask[(slice(None),) * axis + (slice(0, half) if device == 0 else slice(half, None),)] = True
    return mask


@cache
def conversion(shape: Shape, has: str, wanted: str) -> int:
    """Return c(t1 -> t2): the "ghost area" less the area that is there already, on both devices together.

    From `red` every device gets the other's partial sum of all that it wants.
    """
    area = 0
    for device in range(2):
        ghost = _tile(shape, wanted, device)
        area += int(ghost.sum() if has == "red" else (ghost & ~_tile(shape, has, device)).sum())
    return area


def _flipped(tiling: str, transposed: bool) -> str:
    return {"R": "C", "C": "R"}.get(tiling, tiling) if transposed else tiling


def operator_cost(shapes: Mapping[str, Shape], matmul: Product, tilings: Sequence[str]) -> int:
    """Equation 2: the cheapest of the three aligned tilings."""
    x, y, z = tilings
    return min(
        conversion(shapes[matmul.x], x, _flipped(to_x, matmul.transposed[0]))
        + conversion(shapes[matmul.y], y, _flipped(to_y, matmul.transposed[1]))
        + conversion(shapes[matmul.z], from_z, z)
        for to_x, to_y, from_z in ALIGNED
    )


def levels(products: Sequence[Product]) -> list[list[Product]]:
    """Order operators by breadth-first search on the undirected graph that joins those that share a tensor."""
    ordered: list[list[Product]] = []
    waiting = list(products)
    while waiting:
        level = [waiting.pop(0)]
        while level:
            ordered.append(level)
            touched = {name for matmul in level for name in matmul.tensors}
            level = [matmul for matmul in waiting if touched.intersection(matmul.tensors)]
            waiting = [matmul for matmul in waiting if matmul not in level]
        ordered.append([])
    return ordered


def least_cost(graph: Graph, basic: str = BASIC) -> tuple[int, int]:
    """Equations 4 and 5: return the least cost of a one-cut tiling, and the most tilings of one level looked at.

    `best` is g_l, a table over the tilings of `shared`, the tensors that level l shares with the next; `basic` are the
    tilings that tensors may have.
    """
    ordered = levels(products_of(graph))
    shapes = {name: (tensor.shape[0], tensor.shape[1]) for name, tensor in graph.tensors.items()}
    best, most = np.zeros((), dtype=np.int64), 1
    shared: tuple[str, ...] = ()
    for level, following in zip(ordered, [*ordered[1:], []], strict=True):
        names = tuple(dict.fromkeys(name for matmul in level for name in matmul.tensors))
        cost = _spread(best, shared, names)
        for matmul in level:
            cost = cost + _spread(_table(shapes, matmul, basic), matmul.tensors, names)
        ahead = {name for matmul in following for name in matmul.tensors}
        most = max(most, len(basic) ** len(names))
        best = cost.min(axis=tuple(axis for axis, name in enumerate(names) if name not in ahead))
        shared = tuple(name for name in names if name in ahead)
    return int(best), most


def _table(shapes: Mapping[str, Shape], matmul: Product, basic: str) -> np.ndarray:
    costs = [operator_cost(shapes, matmul, tilings) for tilings in product(basic, repeat=3)]
    return np.array(costs, dtype=np.int64).reshape((len(basic),) * 3)


def _spread(table: np.ndarray, own: tuple[str, ...], names: tuple[str, ...]) -> np.ndarray:
    """Arrange a table over its own tensors so that it can be added to one over `names`."""
    order = sorted(range(len(own)), key=lambda axis: names.index(own[axis]))
    lengths = dict(zip(own, table.shape, strict=True))
    return table.transpose(order).reshape([lengths.get(name, 1) for name in names])
