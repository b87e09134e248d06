"""Split the network into blocks, in the order of the forward pass, with their costs for one micro-batch.

A block is a repeated segment (a layer), or the nodes between such segments. In a network without repeats it is a link
of the chain of forward nodes. Of many equal segments only a few are analyzed; each stands for several.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import chain, groupby
from typing import NamedTuple

from planner.graph.chain import chain_of
from planner.graph.ir import ITEM_BYTES
from planner.graph.micro_batches import BEFORE, EVERY, FORWARD
from simulator.projection.block import Block, Exchanged, Part
from simulator.projection.kernels import (
    Work,
    conversion,
    converted,
    fused,
    is_product,
    readers_of,
    without_intermediates,
    work_of,
    written_by,
)
from simulator.projection.memory import Kept, Lasting, lasting_of
from simulator.projection.network import Network
from simulator.projection.replica import NodeShare, Replica, Transfer
from simulator.projection.stack import Kernels, Stack, added, sent_by_member
from topologies.machine import Device

MOST = 1 << 9

SCORES = 4
"""Rank of attention scores: samples, heads, queries, keys."""


@lru_cache(MOST)
def blocks_of(replica: Replica, stack: Stack, device: Device, network: Network) -> tuple[Block, ...]:
    """Return the blocks of a replica, in the order of the forward pass."""
    device = device.with_libraries(stack.kernels.libraries)
    shares = without_intermediates(replica.shares, _forward_kernels(replica, stack.kernels))
    blocks = _Blocks(replace(replica, shares=shares), stack.kernels, device, network).blocks()
    if not stack.hides_exchanges:
        return tuple(blocks)
    pieces = network.grid.inner // network.grid.experts
    return tuple(block.hiding(pieces, stack.slowdown) for block in blocks)


def _forward_kernels(replica: Replica, kernels: Kernels) -> Iterator[tuple[NodeShare, ...]]:
    """Yield the runs of forward nodes that one kernel computes, in layers and around them."""
    readers = readers_of(replica.shares)
    forward = (share for share in replica.shares if share.phase == FORWARD)
    for in_layers, shares in groupby(forward, key=lambda share: share.node.name in replica.repeats.nodes):
        yield from fused(tuple(shares), (kernels if in_layers else kernels.around_layers()).fusion, readers)


def repeated(blocks: Sequence[Block], layers: Sequence[int]) -> tuple[Block, ...]:
    """Return the blocks of the full network, given the number of layers in each run. The second block is repeated."""
    result: list[Block] = []
    for run, group in groupby(blocks, key=lambda block: block.run):
        there = list(group)
        if run is not None and layers and layers[run] > len(there):
            there = [there[0], *[there[1]] * (layers[run] - len(there) + 1), *there[2:]]
        result += there
    return tuple(result)


def repeated_operations(share: NodeShare) -> float:
    """Return the flop of a product's share beyond an even share of the work."""
    operations = share.operations if share.attention is None else share.attention.operations
    return operations * (1 - 1 / share.repeats) if is_product(share) else 0.0


def tied_parameters(replica: Replica) -> int:
    """Return the number of weight elements that a worker reads in both the first and the last block."""
    shares = [share for share in replica.shares if share.phase == FORWARD and share.node.forward is None]
    tensors, copied = replica.graph.tensors, {}
    for share in replica.shares:
        if share.phase == BEFORE and len(share.reads) == len(share.writes) == 1:
            copied[next(iter(share.writes))] = next(iter(share.reads))
    layers = [at for at, share in enumerate(shares) if share.node.name in replica.repeats.nodes] or [0]

    def weights(some: Sequence[NodeShare]) -> set[str]:
        names = {copied.get(name, name) for share in some for name in share.reads}
        return {name for name in names if tensors[name].is_parameter}

    tied = weights(shares[: layers[0]]) & weights(shares[layers[-1] + 1 :])
    return sum(replica.held[name] * tensors[name].elements // tensors[name].nbytes for name in tied)


class _Conversions(NamedTuple):
    """Conversion of operands to 8 bits: forward and backward per micro-batch, and once per iteration."""

    forward: Work = Work()
    backward: Work = Work()
    once: Work = Work()


class _Blocks:
    """Assigns nodes and tensors to blocks by their forward nodes."""

    def __init__(self, replica: Replica, kernels: Kernels, device: Device, network: Network) -> None:
        self._replica, self._device, self._network = replica, device, network
        self._tensors = replica.graph.tensors
        self._kernels = kernels.for_softmaxes(self._softmaxes())
        self._segments: list[int | None] = []
        self._of_node = self._blocks_of_nodes()
        self._readers = readers_of(replica.shares)
        self._gradients = frozenset(replica.graph.accumulated)
        self._kept = Kept(replica, kernels, self._of_node, frozenset(filter(self._is_own, self._tensors)))

    def blocks(self) -> Iterator[Block]:
        """Yield every block with the sums of its costs."""
        shares: list[list[NodeShare]] = [[] for _ in self._segments]
        for share in self._replica.shares:
            shares[self._of_node[share.node.name]].append(share)
        crossing, lasting = self._crossing_bytes(), self._lasting()
        for number, segment in enumerate(self._segments):
            yield replace(self._block(segment, shares[number], lasting[number]), boundary_bytes=crossing[number])

    def _blocks_of_nodes(self) -> Mapping[str, int]:
        """Return the block of each node: a segment, a stretch between segments, or a link if there are no segments."""
        of_node: dict[str, int] = {}
        repeats = self._replica.repeats
        last: tuple[int | None, int] = None, -1
        links = {} if repeats.runs else chain_of(self._replica.graph).of_node
        for share in self._replica.shares:
            node = share.node
            if node.forward in of_node:
                of_node[node.name] = of_node[node.forward]
            elif share.phase == FORWARD and node.forward is None:
                key = repeats.segment_of(node.name), links.get(node.name, 0)
                if key != last:
                    self._segments.append(key[0])
                    last = key
                of_node[node.name] = len(self._segments) - 1
        return self._with_rest(of_node)

    def _with_rest(self, of_node: dict[str, int]) -> Mapping[str, int]:
        """Assign the remaining nodes, such as casts and updates of weights.

        They belong to the first block that uses what they read or write.
        """
        used: dict[str, int] = {}
        for share in self._replica.shares:
            if share.node.name in of_node:
                for name in (*share.reads, *share.writes):
                    used.setdefault(name, of_node[share.node.name])
        before = [share for share in self._replica.shares if share.phase == BEFORE]  # reversed: users first
        others = (share for share in self._replica.shares if share.phase != BEFORE)
        for share in (*reversed(before), *others):
            names = [name for name in (*share.writes, *share.reads) if self._tensors[name].elements > 1]
            at = of_node.setdefault(share.node.name, min((used[name] for name in names if name in used), default=0))
            for name in names:
                used.setdefault(name, at)
        return of_node

    def _softmaxes(self) -> int:
        """Return the number of score matrices in a layer's softmax; 0 if there is none."""
        for share in self._forward():
            if share.function == "softmax" and len(shape := self._tensors[share.node.outputs[0]].shape) == SCORES:
                return sum(share.writes.values()) // ITEM_BYTES[share.dtype] // (shape[-2] * shape[-1])
        return 0

    def _forward(self) -> Iterator[NodeShare]:
        return (s for s in self._replica.shares if s.phase == FORWARD and s.node.forward is None)

    def _is_own(self, name: str) -> bool:
        """Return whether a tensor depends on samples."""
        return self._tensors[name].init is None and self._tensors[name].role == "activation" and name not in self._once

    @cached_property
    def _once(self) -> frozenset[str]:
        """Tensors that are computed once per iteration."""
        return frozenset(chain.from_iterable(s.writes for s in self._replica.shares if s.phase not in EVERY))

    def _crossing_bytes(self) -> list[int]:
        """Return, for each block, the bytes that later blocks read of it and of all before it."""
        last: dict[str, int] = {}
        written_in = {name: self._of_node[s.node.name] for s in self._forward() for name in s.writes}
        for share in self._forward():
            last |= {name: self._of_node[share.node.name] for name in share.reads if name in written_in}
        crossing = [0] * len(self._segments)
        for name, block in last.items():
            for between in range(written_in[name], block):
                crossing[between] += self._replica.held[name]
        return crossing

    def _lasting(self) -> list[Lasting]:
        """Return the weights and states of each block. Those read by several belong to the first."""
        held, lasting = [Lasting()] * len(self._segments), dict(lasting_of(self._replica))
        for share in self._replica.shares:
            at = self._of_node[share.node.name]
            for name in share.reads:
                if name in lasting:
                    held[at] = held[at].plus(lasting.pop(name))
        return held

    def _block(self, segment: int | None, shares: Sequence[NodeShare], lasting: Lasting) -> Block:
        forward, backward = ([s for s in shares if s.phase == phase] for phase in EVERY)
        once = [share for share in shares if share.phase not in EVERY]
        selected, selected_bytes = self._kept.selected(forward) if segment is not None else ((), 0)
        weights = [share for share in backward if self._gradients.issuperset(share.writes)]
        kernels = self._kernels if segment is not None else self._kernels.around_layers()
        written = (written_by(run, self._readers) for run in fused(backward, kernels.fusion, self._readers))
        gradients = (size for writes in written for n, size in writes.items() if n not in self._kept.in_place)
        eight = self._conversions(forward, backward, kernels)
        reduced = [transfer for share in shares for transfer in self._once_exchanged(share)]
        return Block(
            run=None if segment is None else self._replica.repeats.run_of(segment),
            forward=self._part(forward, kernels) + Part((eight.forward,)),
            backward=self._part(backward, kernels) + Part((eight.backward,)),
            weights=self._part(weights, kernels),
            selected=self._part(selected, kernels),
            once=self._work(once, kernels) + eight.once,
            reduced_s=sum(map(self._network.transfer_s, reduced)),
            reduced=added(transfer.sent for transfer in reduced),
            repeated_operations=sum(map(repeated_operations, (*forward, *backward))),
            parameters=lasting.parameters,
            expert_share=lasting.expert_parameters / max(1, lasting.parameters),
            weight_tensors=lasting.tensors,
            weight_bytes=lasting.weight_bytes,
            master_bytes=lasting.master_bytes,
            state_bytes=lasting.state_bytes,
            gradient_bytes=sum(size for s in shares for n, size in s.writes.items() if n in self._gradients),
            kept_bytes=self._kept.nbytes((*(s for s in once if s.phase == BEFORE), *forward)),
            selected_bytes=selected_bytes,
            largest_bytes=max(gradients, default=0),
        )

    def _conversions(
        self, forward: Sequence[NodeShare], backward: Sequence[NodeShare], kernels: Kernels
    ) -> _Conversions:
        """Return the cost of converting operands of products to 8 bits: once each, and weights once per iteration.

        Kernels other than products write 8 bits themselves, at no extra cost.
        """
        if kernels.products is None:
            return _Conversions()
        first, second = converted(forward), converted(backward)
        writers = {name: share for share in (*forward, *backward) for name in share.writes}

        def by_itself(name: str) -> bool:
            return name in writers and is_product(writers[name])

        lasting = (nbytes for name, nbytes in first.items() if not self._is_own(name))
        between = (nbytes for name, nbytes in first.items() if by_itself(name))
        gradients = (nbytes for name, nbytes in second.items() if name not in first and by_itself(name))
        dtype = next(share.dtype for share in forward)
        return _Conversions(*(conversion(operands, dtype, self._device) for operands in (between, gradients, lasting)))

    def _part(self, shares: Sequence[NodeShare], kernels: Kernels) -> Part:
        """Return the kernels of some nodes, with the exchanges before and after them."""
        items: list[Work | Exchanged] = []
        for run in fused(shares, kernels.fusion, self._readers):
            items += map(self._exchanged, run[0].before)
            items.append(work_of(run, self._readers, self._device, kernels))
            items += map(self._exchanged, run[-1].after)
        return Part(tuple(items))

    def _exchanged(self, transfer: Transfer) -> Exchanged:
        return Exchanged(self._network.transfer_s(transfer), transfer.sent, transfer.kind != "all-to-all")

    def _once_exchanged(self, share: NodeShare) -> Iterator[Transfer]:
        """Yield the exchanges among tensor parallel workers once per iteration. Other exchanges span all replicas."""
        for transfer in share.once if share.phase in EVERY else (*share.before, *share.after, *share.once):
            place = transfer.workers[-1] // self._network.grid.tensor
            workers = tuple(w for w in transfer.workers if w // self._network.grid.tensor == place)
            if len(workers) > 1:
                nbytes = transfer.nbytes * (2 if transfer.kind == "all-reduce" else 1)
                yield replace(transfer, workers=workers, sent=sent_by_member({"tp": len(workers)}, nbytes))

    def _work(self, shares: Sequence[NodeShare], kernels: Kernels) -> Work:
        runs = fused(shares, kernels.fusion, self._readers)
        return sum((work_of(run, self._readers, self._device, kernels) for run in runs), Work())
