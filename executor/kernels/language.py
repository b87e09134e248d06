"""Rotary embeddings, and tokens on their way to experts and back."""

from __future__ import annotations

from executor.kernels.call import Array, Kernel, KernelCall
from executor.kernels.selection import segment_sums


def rotary(call: KernelCall) -> None:
    """Rotate pairs of elements by their angles."""
    (x, cos, sin), xp, half = call.inputs, call.xp, call.integer("half")
    columns = xp.arange(*call.ranges["j"])
    low = columns < half
    partner = xp.where(low, columns + half, columns - half)
    own, turned = (x[..., places - call.origins[0][3]] for places in (columns, partner))
    turned *= sin[:, (partner if call.flag("inverse") else columns) - call.origins[2][1]]
    turned *= xp.where(low ^ call.flag("inverse"), -1, 1).astype(sin.dtype)
    call.xp.add(own * cos, turned, out=call.outputs[0])


def expert_slots(call: KernelCall) -> None:
    """Number the slots that choices get, with `capacity` slots per expert."""
    (indices,), xp, capacity = call.inputs, call.xp, call.integer("capacity")
    chosen = indices.reshape(len(indices), -1)
    sample = xp.arange(len(indices))[:, None]
    order = xp.argsort(chosen, axis=1, kind="stable")
    ordered = (xp.take_along_axis(chosen, order, axis=1) + (sample << 32)).reshape(-1)  # ascending over all samples
    place = xp.empty_like(chosen)
    places = xp.arange(ordered.size) - xp.searchsorted(ordered, ordered)
    place[sample, order] = places.reshape(chosen.shape).astype(place.dtype)
    slots = xp.where(place < capacity, chosen * capacity + place, -1).reshape(indices.shape)
    part = tuple(slice(*call.ranges[name]) for name in "sk")
    call.xp.copyto(call.outputs[0], slots[:, *part], casting="unsafe")


def _local(call: KernelCall) -> tuple[Array, Array]:
    """Return which slots lie in this run's range, and their numbers in that range, over all samples."""
    slots, capacity = call.inputs[1], call.integer("capacity")
    (first_expert, last_expert), (first_place, last_place) = call.ranges["e"], call.ranges["c"]
    expert, place = slots // capacity, slots % capacity
    inside = (expert >= first_expert) & (expert < last_expert) & (place >= first_place) & (place < last_place)
    inside &= slots >= 0
    sample = call.xp.arange(len(slots))[:, None, None]
    number = (sample * (last_expert - first_expert) + expert - first_expert) * (last_place - first_place)
    return inside, (number + place - first_place) * inside


def dispatch(call: KernelCall) -> None:
    """Sum the tokens of every slot."""
    (x, _), (out,) = call.inputs, call.outputs
    inside, numbers = _local(call)
    sums = call.xp.empty((out.size // max(1, out.shape[-1]), out.shape[-1]), out.dtype)
    segment_sums(call.xp, call.xp.where(inside, numbers, -1), x, sums)
    out[...] = sums.reshape(out.shape)


def collect(call: KernelCall) -> None:
    """Fetch every token from its slot."""
    (x, _), (out,) = call.inputs, call.outputs
    inside, numbers = _local(call)
    tokens = x.reshape(-1, x.shape[-1])[numbers]
    call.xp.copyto(out, call.xp.where(inside[..., None], tokens, 0))


KERNELS: dict[str, Kernel] = {
    "rotary": rotary,
    "expert_slots": expert_slots,
    "dispatch": dispatch,
    "collect": collect,
}
