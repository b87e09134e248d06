"""Software stacks: what a framework fuses, keeps in memory, launches and overlaps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import log, prod, sqrt
from types import NoneType
from typing import Any, Literal, get_args, get_type_hints

import msgspec

from planner.errors import InputError
from planner.layout import axes_name
from planner.layout.ways import AXES
from tdl.traits import Function
from tensor_partitioner.display import nearest
from topologies.kernels import AttentionKernel

Fusion = Literal["operators", "elementwise", "all"]
Selection = Literal["attention", "products"]
Unaligned = Literal["padded", "slower"]


SOFTMAX_APART: tuple[Function, float] = "softmax", 5.0
"""PyTorch's masked softmax in 16 bits: conversion to float32, scaling, masking, softmax, conversion back."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """Which operators a stack fuses into one kernel, and how its kernels compute.

    `fusion`: one kernel per operator (a norm or a softmax is one); or also one per run of element-wise operators; or
    one for everything between two matrix products. `passes` lists functions that are written as several element-wise
    ones, and how much longer they take than one kernel. `products` is the dtype to which layers convert activations and
    weights before multiplying; None for their own. `attention` is the kernel for attention that stores no matrix.
    `selective` recomputation covers attention that stores its matrix, or keeps every second product of a layer and the
    result of attention. A loss works in place on the logits (`loss_in_place`) or converts them to float32. A masked
    softmax is one kernel if heads times samples is a multiple of `softmaxes`, otherwise one per operator in float32.
    The operands of a long sum are read again (`rereads`) by what needs the sum. `unaligned` products of 16 bits, whose
    rows do not start at multiples of 16 bytes, have their operands padded or use slower library kernels. `libraries` is
    the year of the libraries that compute products. If `layers_only` are compiled, the rest is eager PyTorch.
    """

    fusion: Fusion
    passes: tuple[tuple[Function, float], ...] = ()
    products: str | None = None
    attention: AttentionKernel = "flash-2"
    selective: Selection = "attention"
    loss_in_place: bool = False
    softmaxes: int = 1
    rereads: bool = True
    unaligned: Unaligned = "slower"
    libraries: int = 2024
    layers_only: bool = False

    def around_layers(self) -> Kernels:
        """Return the kernels of what is in no layer. It multiplies in its own dtype."""
        around = replace(self, fusion=EAGER.fusion, passes=EAGER.passes) if self.layers_only else self
        return replace(around, products=None)

    def passes_of(self, function: Function | None) -> float:
        """How many times longer a function, or its gradient, takes than one kernel."""
        return next((times for name, times in self.passes if name == function), 1.0)

    def for_softmaxes(self, count: int) -> Kernels:
        """Return the kernels for `count` masked softmaxes at once, which is samples times heads."""
        return self if count % self.softmaxes == 0 else replace(self, passes=(*self.passes, SOFTMAX_APART))


@dataclass(frozen=True, slots=True)
class Stack:
    """The properties of a step that depend on the software, not on the device.

    `host_s` is the host's time to launch a kernel, `host_exchange_s` that of an exchange, and `host_micro_batch_s` its
    other work per micro-batch, such as loading it. `gradient_bytes` is the size of a gradient element while it
    accumulates over micro-batches; None: as computed. `adds_up_beside`: the product that computes a gradient also
    accumulates it; otherwise another kernel does. `update_bytes` is the memory traffic of an update per gradient
    element besides the optimizer's. `update_gradient_bytes` is the size of an element of the gradients' flat copy that
    an update reads; 0 without a copy. `overlaps_gradients`: gradients are reduced during the last backward pass, in
    buckets of at least `bucket_bytes`; computation and communication slow each other down by `slowdown`.
    `overlaps_parameters`: updated weights are gathered during the next forward pass (ZeRO-1 and 2). `gathered_bytes` is
    the size of a gathered weight element; None: as computed with. `gathers_ahead`: weights of the next layer are
    gathered while one computes; `gathers_ahead_backward`: also in the backward pass. `casts_gathered`: sharded weights
    are kept only in float32 and cast while they are gathered. `hides_exchanges`: exchanges among tensor and context
    parallel workers are made in as many pieces as there are workers, each while another piece is multiplied or attended
    to. `scatters_messages`: tensor parallel workers of a stage each send a share of what all have, which the next stage
    gathers. `even_stages`: stages have equal numbers of layers, if these divide. `fragmentation` is the ratio of
    reserved to live bytes of the allocator. Kernels take `kernel_times` times as long as the device's figures say (1
    unless a measured run corrects them), and exchanges `exchange_times` times as long. The slowest device takes
    `straggler` times as long for its kernels; kernel times vary between devices with a relative standard deviation of
    `jitter`.
    """

    kernels: Kernels
    host_s: float
    host_exchange_s: float = 50e-6
    host_micro_batch_s: float = 0.0
    gradient_bytes: int | None = None
    adds_up_beside: bool = False
    update_bytes: float = 0.0
    update_gradient_bytes: int = 0
    overlaps_gradients: bool = True
    overlaps_parameters: bool = False
    gathered_bytes: int | None = None
    gathers_ahead: bool = True
    gathers_ahead_backward: bool = True
    casts_gathered: bool = False
    hides_exchanges: bool = False
    scatters_messages: bool = False
    even_stages: bool = True
    bucket_bytes: int = 25 << 20
    slowdown: float = 1.13
    fragmentation: float = 1.03
    kernel_times: float = 1.0
    exchange_times: float = 1.0
    straggler: float = 1.0
    jitter: float = 0.0

    def multiplying_in(self, dtype: str | None) -> Stack:
        """Return the stack with layers that multiply in `dtype`; None: in their own."""
        return replace(self, kernels=replace(self.kernels, products=dtype))

    def slowed(self, kernels: float, exchanges: float, host: float) -> Stack:
        """Return the stack with kernels, exchanges and the host slower by these factors."""
        return replace(
            self,
            kernel_times=self.kernel_times * kernels,
            exchange_times=self.exchange_times * exchanges,
            host_s=self.host_s * host,
            host_exchange_s=self.host_exchange_s * host,
            host_micro_batch_s=self.host_micro_batch_s * host,
        )

    def slowest(self, devices: int) -> float:
        """Return the expected ratio of the slowest device to the mean.

        The largest of n normal variables is expected sqrt(2 ln n) standard deviations above the mean.

        >>> Stack(Kernels("all"), 0.0, jitter=0.01).slowest(1024).__round__(3)
        1.037
        """
        return self.straggler * (1 + self.jitter * sqrt(2 * log(devices)))


EAGER = Kernels("operators", passes=(("cross entropy", 2.0), ("root mean square norm", 8.0), ("rotation", 5.0)))
"""PyTorch without compilation, as passes over memory relative to one kernel.

A loss is a log-softmax and a selection, whose gradient is first filled with zeros. A root-mean-square norm converts to
float32, squares, averages, scales, converts and scales: 36 bytes per element of 16 bits instead of 4. A rotary
embedding converts, multiplies and converts: 20 instead of 4.
"""

MEGATRON = Kernels("elementwise", passes=(("cross entropy", 3.3),), softmaxes=4)
"""Megatron-LM's loss, over a vocabulary in parts, makes ten passes where one kernel makes three.

Its masked softmax kernel processes four at once (megatron/core/fusions/fused_softmax.py, `is_kernel_available`).
"""

SCALED_GRADIENTS = 16.0
"""Traffic of float32 gradients that are divided by the loss scale (8 bytes), whose norm is computed, and set to zero.
"""

_MEGATRON_CORE = Stack(
    replace(MEGATRON, attention="native"), host_s=6e-6, gradient_bytes=4, update_bytes=SCALED_GRADIENTS,
    adds_up_beside=True, scatters_messages=True, overlaps_parameters=True,
)  # fmt: skip

STACKS: Mapping[str, Stack] = {
    "eager": Stack(EAGER, host_s=6e-6, even_stages=False, casts_gathered=True),
    "compile": Stack(Kernels("all", unaligned="padded"), host_s=2e-6, even_stages=False, casts_gathered=True),
    "fsdp2": Stack(
        replace(EAGER, selective="products"), host_s=6e-6, gradient_bytes=4, even_stages=False, casts_gathered=True
    ),
    "fsdp2-compiled": Stack(
        Kernels("all", selective="products", unaligned="padded"), host_s=2e-6, gradient_bytes=4, even_stages=False,
        casts_gathered=True,
    ),
    "composer": Stack(
        replace(EAGER, attention="flash-1", selective="products", loss_in_place=True), host_s=6e-6, gradient_bytes=4,
        even_stages=False, gathers_ahead_backward=False, casts_gathered=True,
    ),
    "megatron": _MEGATRON_CORE,
    "nemo": replace(
        _MEGATRON_CORE, kernels=replace(_MEGATRON_CORE.kernels, loss_in_place=True), gradient_bytes=2,
        hides_exchanges=True,
    ),
    "megatron-2021": Stack(
        replace(MEGATRON, libraries=2021), host_s=6e-6, gradient_bytes=2, update_bytes=SCALED_GRADIENTS,
        overlaps_gradients=False, scatters_messages=True,
    ),
    "megatron-deepspeed": Stack(
        replace(MEGATRON, libraries=2023),
        host_s=49e-6, host_exchange_s=40e-6, host_micro_batch_s=3.4e-3, gradient_bytes=2, overlaps_gradients=False,
        scatters_messages=True, update_gradient_bytes=4,
    ),
}  # fmt: skip
"""Stacks by name. The slowdown was measured on A100s by Hetu-Galvatron (github.com/PKU-DAIR/Hetu-Galvatron, cea12ff).

PyTorch's compiler pads products (torch/_inductor/config.py, `shape_padding`).
PyTorch's FSDP keeps only float32 shards of weights (`MixedPrecisionPolicy`: docs.pytorch.org, fully_shard).
What selective recomputation keeps follows Megatron-LM (Korthikanti et al., 2022) and torchtitan (its option "op").
`fsdp2-compiled` compiles layers and the loss, as torchtitan does today. At the end of 2024 it compiled layers only
(`layers_only`; github.com/pytorch/torchtitan, e8977b007).
Composer lets FSDP gather a layer's weights in the backward pass only after the layer before has computed
(`backward_prefetch`, default BACKWARD_POST: docs.mosaicml.com). Up to llm-foundry 0.4, attention is the first
FlashAttention, and the loss is that of its authors.
Megatron Core gathers updated weights and reduces gradients beside computation if it is told to
(`--overlap-param-gather`, `--overlap-grad-reduce`), as its exports here tell it. NeMo changes Megatron Core's defaults:
gradients of 16 bits, overlapped tensor parallel exchanges, Transformer Engine's loss
(github.com/NVIDIA-NeMo/Megatron-Bridge, src/megatron/bridge/perf_recipes/_common.py).
Megatron-LM of 2021 accumulates 16-bit gradients in 16 bits and reduces them after the last backward pass, or leaves
both to PyTorch's DDP (`overlaps_gradients`; github.com/NVIDIA/Megatron-LM, de7dc40f88: `--DDP-impl`,
megatron/model/distributed.py).
DeepSpeed's ZeRO keeps 16 bytes per weight in shards, 4 of them for gradients in float32
(deepspeed.readthedocs.io, memory requirements).
The host times of `megatron-deepspeed` are fitted on a third of vTrain's iterations (results/scoreboard); those of the
others are assumed.
"""


OURS = "ours"
"""Stands for this project's executor, whose program is simulated message by message."""


def stack_named(text: str, others: Sequence[str] = ()) -> Stack:
    """Return the stack that a text names, with the fields it changes. Raises InputError for an unknown name or field.

    Fields are those of `Stack` and `Kernels` with plain values. `others` are names that the error lists besides.

    >>> stack = stack_named("megatron,overlaps-gradients=no,libraries=2021")
    >>> stack.overlaps_gradients, stack.kernels.libraries
    (False, 2021)
    """
    name, *changes = text.split(",")
    if name not in STACKS:
        known = (*STACKS, *others)
        raise InputError(f"stack: expected {', '.join(known)}, found {name!r}{nearest(name, known)}")
    stack = STACKS[name]
    for change in changes:
        field, _, value = change.partition("=")
        field = field.strip().replace("-", "_")
        if field not in FIELDS:
            names = sorted(name.replace("_", "-") for name in FIELDS)
            hint = nearest(field.replace("_", "-"), names) or f": expected one of {', '.join(names)}"
            raise InputError(f"stack: unknown field {change!r}{hint}")
        owner, kind = FIELDS[field]
        changed = {field: _converted(value.strip(), kind, field)}
        kernels = replace(stack.kernels, **changed) if owner is Kernels else stack.kernels
        stack = replace(stack, kernels=kernels, **(changed if owner is Stack else {}))
    return stack


def _converted(text: str, kind: Any, field: str) -> Any:
    """Return the value of a field that a text spells; a number is at least 0, and 1 for a count or a factor."""
    least = int(kind is not float or getattr(_DEFAULTS, field, 0) >= 1) if field != "update_gradient_bytes" else 0
    try:
        value = msgspec.convert(WORDS.get(text, text), kind, strict=False)
        if isinstance(value, bool) or not isinstance(value, int | float) or least <= value <= LARGEST:
            return value
    except msgspec.ValidationError:
        pass
    kinds = " or ".join(KINDS.get(part) or repr(part) for part in get_args(kind) or (kind,)).format(least)
    raise InputError(f"stack: {field.replace('_', '-')}: expected {kinds}, found {text!r}")


_DEFAULTS = STACKS["megatron"]
WORDS = {"yes": True, "no": False, "on": True, "off": False, "none": None}
KINDS = {bool: "yes or no", int: "a whole number from {}", float: "a number from {}", NoneType: "none"}
LARGEST = 1e15
FIELDS = {
    name: (owner, kind)
    for owner in (Kernels, Stack)
    for name, kind in get_type_hints(owner).items()
    if name not in ("kernels", "passes", "products", "kernel_times")
}
"""Fields that a stack's text may change, with their owners and types."""


# Bytes that workers send, by mesh axis.


Sent = Mapping[str, float]
"""Bytes by the axes along which sender and receiver differ, such as "dp" or "dp x cp"."""


def added(several: Iterable[Sent]) -> Sent:
    """Return the sum of bytes by axis."""
    total: dict[str, float] = {}
    for sent in several:
        for axes, nbytes in sent.items():
            total[axes] = total.get(axes, 0) + nbytes
    return total


def times(count: float, sent: Sent) -> Sent:
    """Return the bytes multiplied by `count`."""
    return {axes: count * nbytes for axes, nbytes in sent.items()}


def sent_by_member(degrees: Mapping[str, int], nbytes: float) -> Sent:
    """Return the bytes that each member of a mesh sends in an all-gather or reduce-scatter of `nbytes`.

    Each member sends one part to each other. An all-reduce is both, with twice the bytes.

    >>> sent_by_member({"dp": 2, "cp": 2}, 80)
    {'dp': 20.0, 'cp': 20.0, 'dp x cp': 20.0}
    """
    each, along = nbytes / prod(degrees.values()), [axis for axis in AXES if degrees.get(axis, 1) > 1]
    groups = (axes for count in range(1, len(along) + 1) for axes in combinations(along, count))
    return {axes_name(axes): each * prod(degrees[axis] - 1 for axis in axes) for axes in groups}
