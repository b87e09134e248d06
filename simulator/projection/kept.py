"""What a layer's forward pass keeps for the backward pass, entirely or under selective recomputation.

A view has no memory of its own: keeping it keeps its base. The same holds for a part of a tensor, unless a product
reads it, because a product lays out its operands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import tdl
from planner.graph.ir import ITEM_BYTES
from planner.graph.micro_batches import BACKWARD, BEFORE, EVERY, FORWARD
from planner.layout import Shard
from simulator.projection.kernels import is_product
from simulator.projection.replica import NodeShare, Replica
from simulator.projection.stack import Kernels

# The weights and optimizer states that a worker holds throughout.


EXPERTS = "ep"
"""The axis of workers that shard experts."""


class Lasting(NamedTuple):
    """Of weights: elements, those of experts, tensors, bytes as computed with, and bytes of masters.

    Bytes of states.
    """

    parameters: int = 0
    expert_parameters: int = 0
    tensors: int = 0
    weight_bytes: int = 0
    master_bytes: int = 0
    state_bytes: int = 0

    def plus(self, other: Lasting) -> Lasting:
        """Return the sum."""
        return Lasting(*map(sum, zip(self, other, strict=True)))


def lasting_of(replica: Replica) -> Mapping[str, Lasting]:
    """Return the memory of each weight and state that nodes read, by name, in the order of reading.

    A weight is a master if forward and backward passes only read its copies in another dtype.
    """
    tensors, held, copies, plan = replica.graph.tensors, replica.held, Counter[str](), replica.plan
    for weight, nbytes in copies_of_weights(replica).values():
        copies[weight] += nbytes
    bases = replica.bases(parts=True)
    computed = {bases.get(name, name) for share in replica.shares if share.phase in EVERY for name in share.reads}
    lasting: dict[str, Lasting] = {}
    for name in dict.fromkeys(name for share in replica.shares for name in share.reads):
        tensor, own = tensors[name], held[name]
        if tensor.init is None or tensor.role not in ("weight", "state"):
            continue
        if tensor.role == "state":
            lasting[name] = Lasting(state_bytes=own)
            continue
        masters = own if name in copies and name not in computed else 0
        elements = own * tensor.elements // tensor.nbytes
        of_experts = elements * any(
            axis == EXPERTS and isinstance(placement, Shard)
            for axis, placement in zip(plan.ways.axes, plan.layouts[name], strict=False)
        )
        lasting[name] = Lasting(elements, of_experts, 1, copies[name] + own - masters, masters)
    return lasting


def copies_of_weights(replica: Replica) -> Mapping[str, tuple[str, int]]:
    """Return the copies of weights in another dtype, made once per iteration: the weight, and the copy's bytes."""
    tensors, bases = replica.graph.tensors, replica.bases()
    copies: dict[str, tuple[str, int]] = {}
    for share in replica.shares:
        if share.phase == BEFORE and share.traits.converts:
            (operand,), (copy,) = share.node.inputs, share.node.outputs
            weight = bases.get(operand, operand)
            if tensors[weight].is_parameter:
                copies[copy] = weight, share.writes[copy]
    return copies


# What a layer's forward pass keeps for the backward pass, entirely or under selective recomputation.


class Kept:
    """Computes what forward nodes keep, given the block of each node and the tensors that depend on samples."""

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
        """Return the tensors whose memory the nodes read. Copies of weights are excluded: they exist anyway."""
        read: set[str] = set()
        for share in shares:
            bases = self._laid_out if share.products else self._bases
            read.update(bases.get(name, name) for name in share.reads)
        return read.difference(self._copies)

    def _attention_core(self) -> Iterator[str]:
        """Yield the forward nodes of attention that stores its matrix.

        They range from one product of two activations to the next.
        """
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
        """Return the forward nodes that selective recomputation repeats, and the bytes that it does not keep."""
        if self._kernels.selective == "attention":
            core = [share for share in forward if share.node.name in self._core]
            return core, self.nbytes(core, again=True)
        products = [share for share in forward if is_product(share) and share.attention is None]
        saved = {share.node.name for share in (*products[::2], *(s for s in forward if s.attention is not None))}
        kept = (size for s in forward for name, size in s.writes.items() if s.node.name in saved or self._crosses(name))
        again = [replace(share, after=()) for share in forward if share.node.name not in saved]
        return again, self.nbytes(forward) - sum(kept)

    def _crosses(self, name: str) -> bool:
        """Return whether a block other than the writer's reads the tensor."""
        writer = next(self._of_node[share.node.name] for share in self._forward if name in share.writes)
        return any(self._of_node[share.node.name] != writer for share in self._forward if name in share.reads)

    @cached_property
    def in_place(self) -> Mapping[str, float]:
        """Bytes of logits and their gradients with a loss that works in place, at the precision of the logits.

        Logits converted to float32 are not stored, and gradients overwrite the logits.
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
        """Return the bytes that these nodes keep for the backward pass, including dropout masks.

        If attention is computed `again`, its result, which others read, is kept.
        """
        total, read = 0, self._read_backward - (self._read_outside if again else set())
        for share in shares:
            total += sum(int(self.in_place.get(name, size)) for name, size in share.writes.items() if name in read)
            if tdl.catalog[share.node.op].only_in_training:
                total += sum(share.writes.values()) // ITEM_BYTES[share.dtype]
        return total
