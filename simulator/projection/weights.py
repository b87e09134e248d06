"""The weights and optimizer states that a worker holds throughout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from planner.graph.micro_batches import BEFORE, EVERY
from planner.layout import Shard
from simulator.projection.replica import Replica

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
            if tensors[weight].role == "weight" and tensors[weight].init is not None:
                copies[copy] = weight, share.writes[copy]
    return copies
