"""Software stacks: what frameworks fuse, keep in memory, launch and overlap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import log, sqrt
from typing import Literal

from planner.errors import InputError
from tdl.traits import Function
from tensor_partitioner.display import nearest
from topologies.kernels import AttentionKernel

Fusion = Literal["operators", "elementwise", "all"]
Selection = Literal["attention", "products"]
Unaligned = Literal["padded", "slower", "on cores"]


SOFTMAX_APART: tuple[Function, float] = "softmax", 5.0
"""A masked softmax of 16 bits by PyTorch: converted to float32, scaled, masked, the softmax, converted back."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """Which operators a stack computes by one kernel, and whether dropout stores its masks.

    `fusion`: kernels are one for each operator (a norm or a softmax is one), or one for each run of element-wise
    operators besides, or one for everything between two matrix products. A mask has one byte an element. `passes` are
    functions that are written as several element-wise ones, and how many times as long they take as one kernel.
    `products` is the dtype that layers' activations and weights are converted to for being multiplied; None: their
    own. `attention` is by what kernels it is done that stores no matrix. `selective` recomputation is of attention
    that stores its matrix, or keeps of a layer's products every second one and what attention makes. A loss works in
    place of the logits (`loss_in_place`), or converts them to float32. A masked softmax is one kernel where heads
    times samples are a multiple of `softmaxes`, else one for each of its operators, in float32. What a long sum is of
    is read again (`rereads`) by what needs the sum. `unaligned` products of 16 bits, whose rows do not begin at
    multiples of 16 bytes, have their operands padded, or the library's slower kernels, or none on tensor cores.
    """

    fusion: Fusion
    keeps_masks: bool = True
    passes: tuple[tuple[Function, float], ...] = ()
    products: str | None = None
    attention: AttentionKernel = "flash-2"
    selective: Selection = "attention"
    loss_in_place: bool = False
    softmaxes: int = 1
    rereads: bool = True
    unaligned: Unaligned = "slower"

    def passes_of(self, function: Function | None) -> float:
        """How many times as long as by one kernel a function takes, or its gradient."""
        return next((times for name, times in self.passes if name == function), 1.0)

    def for_softmaxes(self, count: int) -> Kernels:
        """Return those of so many masked softmaxes, samples times heads, at once."""
        return self if count % self.softmaxes == 0 else replace(self, passes=(*self.passes, SOFTMAX_APART))


@dataclass(frozen=True, slots=True)
class Stack:
    """What of a step depends on who runs it, not on the device.

    `host_s` is the host's time to launch a kernel, `host_exchange_s` an exchange, and `host_micro_batch_s` what it
    does for a micro-batch besides, such as loading it. `gradient_bytes` are those of an element of a weight's
    gradient as it adds up over micro-batches; None: as computed. `adds_up_beside`: the product that makes it adds it
    up, else another kernel. `update_bytes` of memory traffic an update takes for an element of a weight's gradient
    beside the optimizer's. `overlaps_gradients`: they are reduced while the last backward pass goes on, in buckets of
    no less than `bucket_bytes`; computing and communication beside each other take `slowdown` times as long.
    `gathers_ahead`: weights of the next layer are gathered
    while one computes, `gathers_ahead_backward`: in the backward pass, too. `casts_gathered`: weights that are shared
    out are kept in float32 alone, and cast as they are gathered. `hides_exchanges`: those among tensor and
    context parallel workers are made in as many pieces as there are of these, each while another is multiplied or
    attended to. `scatters_messages`: what all tensor parallel workers of a stage have alike they send in shares,
    gathered again. `even_stages`: stages have as many layers each, where they divide them. `fragmentation` is what
    the allocator holds, of what is live. Kernels of its libraries take `kernel_times` times as long as a device's
    figures say, which are of other years' libraries, and exchanges `exchange_times` as long as those of links. The
    slowest device takes `straggler` times as long as others for its kernels; from device to device their seconds have a
    standard deviation of `jitter` of their mean.
    """

    kernels: Kernels
    host_s: float
    host_exchange_s: float = 50e-6
    host_micro_batch_s: float = 0.0
    gradient_bytes: int | None = None
    adds_up_beside: bool = False
    update_bytes: float = 0.0
    overlaps_gradients: bool = True
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
        """Return it with layers that multiply in this dtype; None: in their own."""
        return replace(self, kernels=replace(self.kernels, products=dtype))

    def slowed(self, kernels: float, exchanges: float, host: float) -> Stack:
        """Return it where kernels, exchanges and the host take so many times as long."""
        return replace(
            self,
            kernel_times=self.kernel_times * kernels,
            exchange_times=self.exchange_times * exchanges,
            host_s=self.host_s * host,
            host_exchange_s=self.host_exchange_s * host,
            host_micro_batch_s=self.host_micro_batch_s * host,
        )

    def slowest(self, devices: int) -> float:
        """How many times as long as a device in the mean the one takes that all wait for.

        Of many normal variables the largest is expected sqrt(2 ln n) standard deviations above their mean.

        >>> Stack(Kernels("all"), 0.0, jitter=0.01).slowest(1024).__round__(3)
        1.037
        """
        return self.straggler * (1 + self.jitter * sqrt(2 * log(devices)))


EAGER = Kernels("operators", passes=(("cross entropy", 2.0), ("root mean square norm", 8.0), ("rotation", 5.0)))
"""PyTorch, in passes through memory, of which a kernel makes one or two.

A loss is a log-softmax and what is picked of it, whose gradient is filled with zeros first. What a norm by the root
mean square takes is converted to float32, squared, averaged, scaled, converted and scaled: 36 bytes an element of 16
bits for 4. A rotation by position is converted, multiplied and converted: 20 for 4.
"""

MEGATRON = Kernels("elementwise", passes=(("cross entropy", 3.3),), softmaxes=4)
"""Megatron-LM's loss, over a vocabulary in parts, has ten passes where one kernel has three.

Its kernel of a masked softmax takes four at once (megatron/core/fusions/fused_softmax.py, `is_kernel_available`).
"""

SCALED_GRADIENTS = 16.0
"""Gradients in float32 that are divided by the scale of the loss (8 bytes), whose norm is taken, and set to zero."""

_MEGATRON_CORE = Stack(
    replace(MEGATRON, attention="native"), host_s=6e-6, gradient_bytes=4, update_bytes=SCALED_GRADIENTS,
    adds_up_beside=True, scatters_messages=True,
)  # fmt: skip

_MEGATRON_2021_KERNELS = replace(MEGATRON, unaligned="on cores")

_MEGATRON_2021 = Stack(
    _MEGATRON_2021_KERNELS, host_s=6e-6, gradient_bytes=2, update_bytes=SCALED_GRADIENTS, overlaps_gradients=False,
    scatters_messages=True, kernel_times=1.14,
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
    "megatron-2021": _MEGATRON_2021,
    "megatron-2021-ddp": replace(_MEGATRON_2021, overlaps_gradients=True),
    "megatron-deepspeed": Stack(
        _MEGATRON_2021_KERNELS,
        host_s=49e-6, host_exchange_s=40e-6, host_micro_batch_s=3.4e-3, gradient_bytes=2, overlaps_gradients=False,
        scatters_messages=True,
    ),
}  # fmt: skip
"""By name. Slowdown: measured on A100s by Hetu-Galvatron (github.com/PKU-DAIR/Hetu-Galvatron, cea12ff).

PyTorch's compiler pads products (torch/_inductor/config.py, `shape_padding`). Until 2022 unaligned ones did without
tensor cores: so it takes 1.38 times as long to train a GPT with 128 heads of 108 instead of 96 of 144 (BigScience's
runs on 384 A100s, where the float32 rate makes it 1.35).
PyTorch's FSDP keeps shares of float32 weights alone (`MixedPrecisionPolicy`: docs.pytorch.org, fully_shard).
What selective recomputation keeps: of Megatron-LM (Korthikanti et al., 2022), and of torchtitan (its option "op").
Composer lets FSDP gather a layer's weights after the one before it has computed, backward (`backward_prefetch`, by its
default BACKWARD_POST: docs.mosaicml.com); of llm-foundry up to version 0.4 attention is the first FlashAttention, the
loss that of its authors.
NeMo sets Megatron Core to what it does not do by itself: gradients of 16 bits, tensor parallel exchanges that are
hidden, Transformer Engine's loss (github.com/NVIDIA-NeMo/Megatron-Bridge,
src/megatron/bridge/perf_recipes/_common.py).
Megatron-LM of 2021 adds gradients of 16 bits up in 16 bits and reduces them after the last backward pass, or leaves
both to PyTorch's DDP (`megatron-2021-ddp`; github.com/NVIDIA/Megatron-LM, de7dc40f88: `--DDP-impl`,
megatron/model/distributed.py). How much longer its kernels take is fitted on six runs of GPTs of 175 and 530 billion
weights on 384 to 2 240 A100s (results/scoreboard, megatron_2021_zero3).
The host of `megatron-deepspeed` is fitted on a third of vTrain's iterations (results/scoreboard); those of others are
assumed.
"""


OURS = "ours"
"""The stack that is none of these: this project's executor, whose program is simulated message by message."""


def stack_named(name: str) -> Stack:
    """Return a stack by its name; an InputError for another."""
    if name not in STACKS:
        raise InputError(f"stack: expected {', '.join(STACKS)}, found {name!r}{nearest(name, STACKS)}")
    return STACKS[name]
