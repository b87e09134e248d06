"""Blocks: parts of the network in the order of the forward pass, with what they take for one micro-batch.

A block is a layer, or a link of the chain of forward nodes. Of a network whose layers repeat a few are looked at, and
one stands for as many as there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import chain
from typing import NamedTuple

import tdl
from planner.graph.chain import chain_of
from planner.graph.ir import ITEM_BYTES
from planner.graph.layers import layer_of
from planner.graph.micro_batches import BACKWARD, BEFORE, EVERY, FORWARD
from simulator.projection.kernels import Work, conversion, converted, fused, is_product, readers_of, work_of
from simulator.projection.network import Network
from simulator.projection.replica import NodeShare, Replica, Transfer
from simulator.projection.stack import Kernels, Stack
from topologies.machine import Device

MOST = 1 << 9


@dataclass(frozen=True, slots=True)
class Part:
    """Work on the device, seconds of exchanges among inner workers, and how many these are."""

    work: Work = field(default_factory=Work)
    exchanged_s: float = 0.0
    exchanges: int = 0

    def __add__(self, other: Part) -> Part:
        """Do both."""
        exchanged = self.exchanged_s + other.exchanged_s, self.exchanges + other.exchanges
        return Part(self.work + other.work, *exchanged)

    @property
    def device_s(self) -> float:
        """Seconds of the device and its exchanges."""
        return self.work.seconds + self.exchanged_s

    def host_s(self, stack: Stack) -> float:
        """Seconds of the host that launches its kernels and exchanges."""
        return self.work.launches * stack.host_s + self.exchanges * stack.host_exchange_s

    def seconds(self, stack: Stack) -> float:
        """Seconds, of the device or of the host."""
        return max(self.device_s, self.host_s(stack))

    def hiding(self, pieces: int, slowdown: float) -> Part:
        """Return it with exchanges in so many pieces, of which all but one are made while there is work."""
        hidden_s = min(self.exchanged_s * (1 - 1 / pieces), self.work.seconds)
        return replace(self, exchanged_s=self.exchanged_s + (slowdown - 2) * hidden_s)


def queued_s(parts: Iterable[Part], stack: Stack, begun_s: float = 0.0) -> float:
    """Return the seconds of parts in turn that the device begins when it is free and the host has launched them.

    The host begins to launch at `begun_s`.
    """
    launched, ended = begun_s, 0.0
    for part in parts:
        begun, launched = max(ended, launched), launched + part.host_s(stack)
        ended = max(begun + part.device_s, launched)
    return ended


@dataclass(frozen=True, slots=True)
class Block:
    """What a block takes a worker for one micro-batch, and what it holds.

    `weights` is the part of `backward` that makes gradients of weights; `attention` that of `forward` within attention
    that stores its matrix. `once` is done once in an iteration, and `reduced_s` exchanged among tensor parallel
    workers. `repeated_operations` of products are those beyond its even part of the model's. Bytes: of weights, of
    states of the optimizer, of copies of weights for computing, of gradients as computed, of
    activations that are kept for the backward pass, of those within attention, of what later blocks read, of the
    largest gradient of an activation. `parameters` are a worker's elements of weights, of so many `weight_tensors`.
    """

    name: str
    forward: Part = field(default_factory=Part)
    backward: Part = field(default_factory=Part)
    weights: Part = field(default_factory=Part)
    attention: Part = field(default_factory=Part)
    once: Work = field(default_factory=Work)
    reduced_s: float = 0.0
    repeated_operations: float = 0.0
    parameters: int = 0
    weight_tensors: int = 0
    weight_bytes: int = 0
    state_bytes: int = 0
    copied_bytes: int = 0
    gradient_bytes: int = 0
    kept_bytes: int = 0
    attention_bytes: int = 0
    boundary_bytes: int = 0
    largest_bytes: int = 0

    def slowed(self, factor: float) -> Block:
        """Return it on a device whose kernels take so many times as long."""
        slow = self._with_parts(lambda part: replace(part, work=part.work.slowed(factor)))
        return replace(slow, once=self.once.slowed(factor))

    def hiding(self, pieces: int, slowdown: float) -> Block:
        """Return it with exchanges that are made in pieces beside its work."""
        return self._with_parts(lambda part: part.hiding(pieces, slowdown))

    def _with_parts(self, changed: Callable[[Part], Part]) -> Block:
        forward, backward, weights, attention = map(
            changed, (self.forward, self.backward, self.weights, self.attention)
        )
        return replace(self, forward=forward, backward=backward, weights=weights, attention=attention)


@lru_cache(MOST)
def blocks_of(replica: Replica, kernels: Kernels, device: Device, network: Network) -> tuple[Block, ...]:
    """Return a replica's blocks in the order of the forward pass."""
    return tuple(_Blocks(replica, kernels, device, network).blocks())


def repeated(blocks: Sequence[Block], layers: int) -> tuple[Block, ...]:
    """Return the blocks of a network of so many layers, of which the middle of those that are there stands for more."""
    numbers = [at for at, block in enumerate(blocks) if block.name.isdecimal()]
    if not numbers or layers == len(numbers):
        return tuple(blocks)
    first, last = numbers[0], numbers[-1]
    middle = blocks[numbers[len(numbers) // 2]]
    inner = [replace(middle, name=str(layer)) for layer in range(1, layers - 1)]
    return (*blocks[: first + 1], *inner, *(blocks[last:] if layers > 1 else blocks[last + 1 :]))


def repeated_operations(share: NodeShare) -> float:
    """Return the operations of a product's share beyond an even part of it."""
    operations = share.operations if share.attention is None else share.attention.operations
    return operations * (1 - 1 / share.repeats) if is_product(share) else 0.0


def tied_parameters(replica: Replica) -> int:
    """Return how many elements of weights a worker reads in the first block and in the last one, too."""
    shares = [share for share in replica.shares if share.phase == FORWARD and share.node.forward is None]
    tensors, copied = replica.graph.tensors, {}
    for share in replica.shares:
        if share.phase == BEFORE and len(share.reads) == len(share.writes) == 1:
            copied[next(iter(share.writes))] = next(iter(share.reads))
    layers = [at for at, share in enumerate(shares) if layer_of(share.node.name) is not None] or [0]

    def weights(some: Sequence[NodeShare]) -> set[str]:
        names = {copied.get(name, name) for share in some for name in share.reads}
        return {name for name in names if tensors[name].role == "weight" and tensors[name].init is not None}

    tied = weights(shares[: layers[0]]) & weights(shares[layers[-1] + 1 :])
    return sum(replica.held[name] * tensors[name].elements // tensors[name].nbytes for name in tied)


class _Conversions(NamedTuple):
    """Converting operands to 8 bits: forward and backward for a micro-batch, and once in an iteration."""

    forward: Work = Work()
    backward: Work = Work()
    once: Work = Work()


class _Blocks:
    """Sorts nodes and tensors into blocks by their forward nodes."""

    def __init__(self, replica: Replica, kernels: Kernels, device: Device, network: Network) -> None:
        self._replica, self._kernels, self._device, self._network = replica, kernels, device, network
        self._tensors = replica.graph.tensors
        self._names: list[str] = []
        self._of_node = self._blocks_of_nodes()
        self._read_backward = {name for s in replica.shares if s.phase == BACKWARD for name in s.reads}
        self._readers = readers_of(replica.shares)
        self._gradients = frozenset(replica.graph.accumulated)
        self._core = frozenset(self._attention_core())
        self._read_outside = {
            name
            for share in replica.shares
            if share.phase == BACKWARD and share.node.forward not in self._core
            for name in share.reads
        }

    def blocks(self) -> Iterator[Block]:
        """Yield every block, with its figures added up."""
        shares: list[list[NodeShare]] = [[] for _ in self._names]
        for share in self._replica.shares:
            shares[self._of_node[share.node.name]].append(share)
        crossing, lasting = self._crossing_bytes(), self._lasting()
        for number, name in enumerate(self._names):
            yield replace(self._block(name, shares[number], lasting[number]), boundary_bytes=crossing[number])

    def _blocks_of_nodes(self) -> Mapping[str, int]:
        """Return the block of every node: a layer by its name, a stretch between layers, or without layers a link."""
        of_node: dict[str, int] = {}
        chain, last = self._chain(), ""
        for share in self._replica.shares:
            node = share.node
            if node.forward in of_node:
                of_node[node.name] = of_node[node.forward]
            elif share.phase == FORWARD and node.forward is None:
                layer = layer_of(node.name)
                key = str(layer) if layer is not None else f"link {chain.get(node.name, 0)}" if chain else "-"
                if key != last:
                    self._names.append("-" if layer is None else str(layer))
                    last = key
                of_node[node.name] = len(self._names) - 1
        return self._with_rest(of_node)

    def _chain(self) -> Mapping[str, int]:
        """Return the links of forward nodes, where no name says of which layer they are."""
        if any(layer_of(share.node.name) is not None for share in self._forward()):
            return {}
        return chain_of(self._replica.graph).of_node

    def _with_rest(self, of_node: dict[str, int]) -> Mapping[str, int]:
        """Put what is left, such as casts and updates of weights, where what it reads or makes is used first."""
        used: dict[str, int] = {}
        for share in self._replica.shares:
            if share.node.name in of_node:
                for name in (*share.reads, *share.writes):
                    used.setdefault(name, of_node[share.node.name])
        for share in self._replica.shares:
            names = [name for name in (*share.writes, *share.reads) if self._tensors[name].elements > 1]
            at = of_node.setdefault(share.node.name, min((used[name] for name in names if name in used), default=0))
            for name in names:
                used.setdefault(name, at)
        return of_node

    def _attention_core(self) -> Iterator[str]:
        """Yield forward nodes of attention that stores its matrix: from a product of two results to the next one."""
        waiting: list[str] = []
        for share in self._forward():
            is_own = bool(share.products) and all(self._depends_on_samples(name) for name in share.reads)
            same = bool(waiting) and self._of_node[waiting[0]] == self._of_node[share.node.name]
            if is_own and same:
                yield from (*waiting, share.node.name)
                waiting = []
            elif is_own:
                waiting = [share.node.name]
            elif same:
                waiting.append(share.node.name)

    def _forward(self) -> Iterator[NodeShare]:
        return (s for s in self._replica.shares if s.phase == FORWARD and s.node.forward is None)

    def _depends_on_samples(self, name: str) -> bool:
        return self._tensors[name].init is None and self._tensors[name].role == "activation" and name not in self._once

    @cached_property
    def _once(self) -> frozenset[str]:
        """What is made once in an iteration."""
        return frozenset(chain.from_iterable(s.writes for s in self._replica.shares if s.phase not in EVERY))

    def _crossing_bytes(self) -> list[int]:
        """Return what later blocks' forward nodes read of each block and those before it."""
        last: dict[str, int] = {}
        made = {name: self._of_node[s.node.name] for s in self._forward() for name in s.writes}
        for share in self._forward():
            last |= {name: self._of_node[share.node.name] for name in share.reads if name in made}
        crossing = [0] * len(self._names)
        for name, block in last.items():
            for between in range(made[name], block):
                crossing[between] += self._replica.held[name]
        return crossing

    def _lasting(self) -> list[dict[str, int]]:
        """Return what each block's first readers hold of weights and states."""
        held: list[dict[str, int]] = [{"weight": 0, "state": 0, "parameters": 0, "tensors": 0} for _ in self._names]
        seen: set[str] = set()
        for share in self._replica.shares:
            for name in share.reads:
                tensor = self._tensors[name]
                if tensor.role in ("weight", "state") and tensor.init is not None and name not in seen:
                    seen.add(name)
                    block = held[self._of_node[share.node.name]]
                    block[tensor.role] += self._replica.held[name]
                    if tensor.role == "weight":
                        block["tensors"] += 1
                        block["parameters"] += self._replica.held[name] * tensor.elements // tensor.nbytes
        return held

    def _block(self, name: str, shares: Sequence[NodeShare], lasting: Mapping[str, int]) -> Block:
        forward, backward = ([s for s in shares if s.phase == phase] for phase in EVERY)
        once = [share for share in shares if share.phase not in EVERY]
        core = [share for share in forward if share.node.name in self._core]
        weights = [share for share in backward if self._gradients.issuperset(share.writes)]
        kernels = self._kernels if name.isdecimal() else replace(self._kernels, products=None)
        gradients = (size for s in backward for n, size in s.writes.items())
        eight = self._conversions(forward, backward, kernels)
        return Block(
            name=name,
            forward=self._part(forward, kernels) + Part(eight.forward),
            backward=self._part(backward, kernels) + Part(eight.backward),
            weights=self._part(weights, kernels),
            attention=self._part(core, kernels),
            once=self._work(once, kernels) + eight.once,
            reduced_s=sum(self._network.transfer_s(t) for s in shares for t in self._once_exchanged(s)),
            repeated_operations=sum(map(repeated_operations, (*forward, *backward))),
            parameters=lasting["parameters"],
            weight_tensors=lasting["tensors"],
            weight_bytes=lasting["weight"],
            state_bytes=lasting["state"],
            copied_bytes=sum(size for s in once if s.phase == BEFORE for size in s.writes.values()),
            gradient_bytes=sum(size for s in shares for n, size in s.writes.items() if n in self._gradients),
            kept_bytes=self._kept_bytes(forward),
            attention_bytes=self._kept_bytes(core, again=True),
            largest_bytes=max(gradients, default=0),
        )

    def _conversions(
        self, forward: Sequence[NodeShare], backward: Sequence[NodeShare], kernels: Kernels
    ) -> _Conversions:
        """Return what converting products' operands to 8 bits takes: each once, and weights once in an iteration.

        What a kernel makes that is no product it writes so itself, in as many bytes as before.
        """
        if kernels.products is None:
            return _Conversions()
        first, second = converted(forward), converted(backward)
        made = {name: share for share in (*forward, *backward) for name in share.writes}

        def by_itself(name: str) -> bool:
            return name in made and is_product(made[name])

        lasting = (nbytes for name, nbytes in first.items() if not self._depends_on_samples(name))
        between = (nbytes for name, nbytes in first.items() if by_itself(name))
        gradients = (nbytes for name, nbytes in second.items() if name not in first and by_itself(name))
        dtype = next(share.dtype for share in forward)
        return _Conversions(*(conversion(one, dtype, self._device) for one in (between, gradients, lasting)))

    def _part(self, shares: Sequence[NodeShare], kernels: Kernels) -> Part:
        exchanged = [t for s in shares for t in (*s.before, *s.after)]
        count = round(sum(transfer.part for transfer in exchanged))
        return Part(self._work(shares, kernels), sum(map(self._network.transfer_s, exchanged)), count)

    def _once_exchanged(self, share: NodeShare) -> Iterable[Transfer]:
        """Return what tensor parallel workers exchange once; context parallel ones do with all that hold the same."""
        exchanged = share.once if share.phase in EVERY else (*share.before, *share.after, *share.once)
        tensor = self._network.grid.inner // self._network.grid.context
        among = ((transfer, tuple(worker for worker in transfer.workers if worker < tensor)) for transfer in exchanged)
        return (replace(transfer, workers=workers) for transfer, workers in among if len(workers) > 1)

    def _work(self, shares: Sequence[NodeShare], kernels: Kernels) -> Work:
        runs = fused(shares, kernels.fusion, self._readers)
        return sum((work_of(run, self._readers, self._device, kernels) for run in runs), Work())

    def _kept_bytes(self, forward: Iterable[NodeShare], *, again: bool = False) -> int:
        """Return what the backward pass reads of what some forward nodes make, and masks of what they drop.

        Of attention that is computed `again` the result is kept, which others read.
        """
        total, read = 0, self._read_backward - (self._read_outside if again else set())
        for share in forward:
            total += sum(size for name, size in share.writes.items() if name in read)
            if self._kernels.keeps_masks and tdl.catalog[share.node.op].only_in_training:
                total += sum(share.writes.values()) // ITEM_BYTES[share.dtype]
        return total
