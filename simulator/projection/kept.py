"""What a layer's forward pass leaves for the backward pass, all of it or under selective recomputation.

What is a view has no memory of its own: it keeps what it is a view of. So does a part, but where a product reads it,
which lays out its operands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import tdl
from planner.graph.ir import ITEM_BYTES
from planner.graph.micro_batches import BACKWARD, FORWARD
from simulator.projection.kernels import is_product
from simulator.projection.replica import NodeShare, Replica
from simulator.projection.stack import Kernels
from simulator.projection.weights import copies_of_weights


class Kept:
    """Tells what is kept of forward nodes, given the block of every node and which tensors depend on samples."""

    def __init__(self, replica: Replica, kernels: Kernels, of_node: Mapping[str, int], own: frozenset[str]) -> None:
        self._shares, self._kernels, self._of_node, self._own = replica.shares, kernels, of_node, own
        self._bases, self._laid_out = replica.bases(parts=True), replica.bases()
        self._copies = copies_of_weights(replica)
        self._forward = [s for s in self._shares if s.phase == FORWARD and s.node.forward is None]
        backward = [s for s in self._shares if s.phase == BACKWARD]
        self._read_backward = self._memory_of(backward)
        self._core = frozenset(self._attention_core())
        self._read_outside = self._memory_of(s for s in backward if s.node.forward not in self._core)

    def _memory_of(self, shares: Iterable[NodeShare]) -> set[str]:
        """Return in whose memory everything is that nodes read; copies of weights are there anyway."""
        read: set[str] = set()
        for share in shares:
            bases = self._laid_out if share.products else self._bases
            read.update(bases.get(name, name) for name in share.reads)
        return read.difference(self._copies)

    def _attention_core(self) -> Iterator[str]:
        """Yield forward nodes of attention that stores its matrix: from a product of two results to the next one."""
        waiting: list[str] = []
        for share in self._forward:
            is_own = bool(share.products) and self._own.issuperset(share.reads)
            same = bool(waiting) and self._of_node[waiting[0]] == self._of_node[share.node.name]
            if is_own and same:
                yield from (*waiting, share.node.name)
                waiting = []
            elif is_own:
                waiting = [share.node.name]
            elif same:
                waiting.append(share.node.name)

    def selected(self, forward: Sequence[NodeShare]) -> tuple[Sequence[NodeShare], int]:
        """Return the forward nodes that selective recomputation does again, and the bytes that it does not keep."""
        if self._kernels.selective == "attention":
            core = [share for share in forward if share.node.name in self._core]
            return core, self.nbytes(core, again=True)
        products = [share for share in forward if is_product(share) and share.attention is None]
        saved = {share.node.name for share in (*products[::2], *(s for s in forward if s.attention is not None))}
        kept = (size for s in forward for name, size in s.writes.items() if s.node.name in saved or self._crosses(name))
        again = [replace(share, after=()) for share in forward if share.node.name not in saved]
        return again, self.nbytes(forward) - sum(kept)

    def _crosses(self, name: str) -> bool:
        """Tell if another layer reads what a node of one makes."""
        writer = next(self._of_node[share.node.name] for share in self._forward if name in share.writes)
        return any(self._of_node[share.node.name] != writer for share in self._forward if name in share.reads)

    @cached_property
    def in_place(self) -> Mapping[str, float]:
        """What a loss that works in place of the logits, at their own precision, takes of logits and their gradients.

        Logits converted to float32 are not stored, and gradients are where logits were.
        """
        if not self._kernels.loss_in_place:
            return {}
        backward = [share for share in self._shares if share.phase == BACKWARD]
        losses = [share for share in backward if share.function == "cross entropy"]
        gradients = {name for share in losses for name in share.writes}
        gradients |= {
            name
            for share in backward
            if gradients & share.reads.keys()
            for name in share.writes
            if share.traits.converts
        }
        logits = {name for share in losses for name, size in share.reads.items() if size == max(share.reads.values())}
        read = {name: sum(s.reads.values()) for s in self._forward for name in s.writes if s.traits.converts}
        return dict.fromkeys(gradients, 0.0) | {name: float(read[name]) for name in logits if name in read}

    def nbytes(self, shares: Iterable[NodeShare], *, again: bool = False) -> int:
        """Return what the backward pass reads of what some nodes before it make, and masks of what they drop.

        Of attention that is computed `again` the result is kept, which others read.
        """
        total, read = 0, self._read_backward - (self._read_outside if again else set())
        for share in shares:
            total += sum(int(self.in_place.get(name, size)) for name, size in share.writes.items() if name in read)
            if self._kernels.keeps_masks and tdl.catalog[share.node.op].only_in_training:
                total += sum(share.writes.values()) // ITEM_BYTES[share.dtype]
        return total
