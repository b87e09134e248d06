"""What is read from memory that it is written to: PyTorch leaves the order of its elements open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from planner.errors import GraphError
from planner.pytorch.graphs import example, packet, where


def refuse_overlap(node: Node, operand: Node) -> None:
    """Raise a GraphError if an operand has elements of what a node changes, both views of one tensor, in other places.

    What an operator reads element by element as it writes it may be written already.
    """
    written, read = example(node.args[0]), example(operand)  # type: ignore[arg-type]
    if _layout(written) != _layout(read) and _meet(written, read):
        raise GraphError(
            f"{where(node)}: {packet(node)} reads memory that it changes, in an order that PyTorch leaves open: "
            "clone() what it reads"
        )


def _layout(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.stride(), tensor.storage_offset()


def _meet(written: torch.Tensor, read: torch.Tensor) -> bool:
    """Return True if two views of one memory may have an element in common, a sum of strides being their gap."""
    gap: Any = read.storage_offset() - written.storage_offset()
    if not all(
        isinstance(number, int) for number in (*written.shape, *read.shape, *written.stride(), *read.stride(), gap)
    ):
        return True
    least, most = Counter[int](), Counter[int]()
    for extent, stride in zip(written.shape, written.stride(), strict=True):
        most[stride] += extent - 1
    for extent, stride in zip(read.shape, read.stride(), strict=True):
        least[stride] -= extent - 1
    strides = sorted({*most, *least} - {0}, reverse=True)
    return _is_sum(gap, [(stride, least[stride], most[stride]) for stride in strides])


def _is_sum(gap: int, steps: Sequence[tuple[int, int, int]]) -> bool:
    """Return True if a gap is a sum of strides, each at least and at most so many times."""
    if not steps:
        return gap == 0
    (stride, least, most), rest = steps[0], steps[1:]
    below = sum(step * fewest for step, fewest, _ in rest)
    above = sum(step * highest for step, _, highest in rest)
    first, last = max(least, -((above - gap) // stride)), min(most, (gap - below) // stride)
    return any(_is_sum(gap - times * stride, rest) for times in range(first, last + 1))
