"""Language models of published sizes with RMS norm, rotary positions and SwiGLU: Llama 2, Llama 3.1 and Mixtral.

Queries share heads of keys and values, no layer has biases, attention stores no matrix. Of Mixtral's experts every
token chooses two; an expert takes of a sample its equal share of choices times `capacity`, and those that come late are
left out, which keeps the residual sum as it is. Mixtral was trained with a loss that balances experts besides; it is
not here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from planner.errors import GraphError
from planner.graph.build import GraphBuilder
from planner.graph.ir import Graph, Value
from planner.models.blocks import WeightProduct, attend, classify_tokens, project, residual_gain, table
from planner.models.layers import RELU_GAIN, rms_norm, softmax
from planner.models.options import Published, Training, option
from planner.models.options import width as read_width


@dataclass(frozen=True, slots=True)
class LlamaSize:
    """Extents; `groups` are heads of keys and values, `hidden` is the width of fully connected layers.

    A head is `head` wide, or as wide as heads that share the width of the model are.

    `base` is that of rotary positions, `stretched` whether they are Llama 3.1's. Without `experts` every token passes
    the same layers. Fully connected layers that are not `gated` have two matrices and a GELU; a gate has `activation`.
    With `qkv_bias` queries, keys and values have biases, with `qk_norm` queries and keys an RMS norm in every head.
    """

    layers: int
    width: int
    heads: int
    groups: int
    hidden: int
    vocabulary: int
    sequence: int
    base: float = 1e4
    stretched: bool = False
    tied: bool = False
    experts: int = 0
    chosen: int = 2
    gated: bool = True
    head: int = 0
    qkv_bias: bool = False
    qk_norm: bool = False
    activation: str = "silu"

    @property
    def head_width(self) -> int:
        """How wide a head is."""
        return self.head or self.width // self.heads


SIZES = {
    "llama-2-7b": LlamaSize(32, 4096, 32, 32, 11008, 32000, 4096),
    "llama-2-70b": LlamaSize(80, 8192, 64, 8, 28672, 32000, 4096),
    "llama-3.1-8b": LlamaSize(32, 4096, 32, 8, 14336, 128256, 8192, 5e5, stretched=True),
    "llama-3.1-70b": LlamaSize(80, 8192, 64, 8, 28672, 128256, 8192, 5e5, stretched=True),
    "llama-3.1-405b": LlamaSize(126, 16384, 128, 8, 53248, 128256, 8192, 5e5, stretched=True),
}
"""Touvron et al. (2023); Grattafiori et al. (2024), with the sequence of most of its training."""

HEAD_WIDTH, MULTIPLE = 128, 256
"""Of a model of any size: how wide a head is, and of what its fully connected layers are a multiple."""

HEAD_WIDTHS = range(2, (1 << 14) + 1, 2)
"""How wide a head may be: its pairs of elements are turned, by angles that a graph lists."""

EXPERTS = {"mixtral-8x7b": LlamaSize(32, 4096, 32, 8, 14336, 32000, 4096, 1e6, experts=8)}
"""Jiang et al. (2024)."""


@dataclass(frozen=True, slots=True)
class Experts(Published):
    """What models of experts have."""

    capacity: float = option(1.25, "Capacity factor: tokens an expert takes, relative to an even share.")


def build(name: str, options: Published) -> Graph:
    """Return the training graph of a published model: see `training`."""
    return training(replace(SIZES[name], **options.chosen), options)


@dataclass(frozen=True, slots=True)
class SizedOptions(Training):
    """What can be chosen about a model of any size."""

    sequence: int = option(4096, "Sequence length in tokens (of the target, in an encoder-decoder).")
    vocabulary: int = option(32000, "Vocabulary size.")
    heads: int | None = option(None, "Attention heads; default: width / 64, of llama-L-D width / 128.")
    groups: int | None = option(None, "Key-value heads (grouped-query attention). Default: as many as heads.")
    head_size: int | None = option(None, "Head dimension. Default: width / heads.")
    hidden: int | None = option(None, "Hidden width of the MLP. Default: 8/3 width, rounded up to 256.")
    tied: bool = option(False, "Tie the embedding and the output layer.")
    gated: bool = option(True, "Gated MLP (SwiGLU, three matrices) instead of GELU (two).")
    experts: int | None = option(None, "Experts per layer. Default: a dense MLP.")
    chosen_experts: int = option(2, "Experts per token (top-k).")
    capacity: float = option(1.25, "Capacity factor: tokens an expert takes, relative to an even share.")


def build_sized(layers: str, width: str, options: SizedOptions) -> Graph:
    """Return the training graph of a model of any size: see `training`. Heads are 128 wide, of narrow models less.

    Raises GraphError for heads that do not divide the width, are no even number wide, or are no multiple of groups.
    """
    units = read_width(width)
    heads = options.heads or max(1, units // HEAD_WIDTH)
    groups = options.groups or heads
    if heads % groups or (options.head_size is None and units % (2 * heads)):
        raise GraphError(
            f"options heads and groups: expected heads of an even width that divide {units} and groups that divide "
            f"them, found {heads} and {groups}"
        )
    if options.head_size is not None and options.head_size not in HEAD_WIDTHS:
        raise GraphError(
            f"option head_size: expected an even width from 2 to {HEAD_WIDTHS[-1]}, found {options.head_size}"
        )
    hidden = options.hidden or math.ceil(8 * units / 3 / MULTIPLE) * MULTIPLE
    if options.experts and not 1 <= options.chosen_experts <= options.experts:
        raise GraphError(
            f"option chosen_experts: expected 1 to {options.experts} of the experts, found {options.chosen_experts}"
        )
    size = LlamaSize(
        int(layers), units, heads, groups, hidden, options.vocabulary, options.sequence, tied=options.tied,
        experts=options.experts or 0, chosen=options.chosen_experts, gated=options.gated, head=options.head_size or 0,
    )  # fmt: skip
    return training(size, options, options.capacity)


def build_experts(name: str, options: Experts) -> Graph:
    """Return the training graph of a published model of experts: see `training`."""
    return training(replace(EXPERTS[name], **options.chosen), options, options.capacity)


def training(size: LlamaSize, options: Training, capacity: float = 1.0) -> Graph:
    """Return the training graph: inputs "tokens" [batch, sequence] and "labels" [batch, sequence], mean loss.

    Raises GraphError for experts of no capacity.
    """
    if not capacity:
        raise GraphError(f"option capacity: expected above 0, found {capacity}")
    b = GraphBuilder(options.dtype)
    words = b.integers("tokens", (options.samples, size.sequence), size.vocabulary)
    weight = table(b, "embedding", size.vocabulary, size.width)
    layers = Layers(b, size, angles(b, size), capacity)
    x = b.apply("embedding", weight, words, name="embedding")
    for layer in range(size.layers):
        x = layers.attention(x, f"l{layer}.attention")
        x = layers.experts(x, f"l{layer}.experts") if size.experts else layers.mlp(x, f"l{layer}.mlp")
    x = rms_norm(b, x, "norm")
    return options.train(b, classify_tokens(b, x, weight if size.tied else None, size.vocabulary))


def frequencies(size: LlamaSize) -> list[float]:
    """Return by how much the angle of each pair of a head's elements grows with position.

    Llama 3.1 divides by 8 what turns less than once in 8192 positions, not what turns more than four times, and goes
    from one to the other between.
    """
    width = size.head_width
    unscaled = [size.base ** (-2 * pair / width) for pair in range(width // 2)]
    if not size.stretched:
        return unscaled
    turns = [8192 * frequency / (2 * math.pi) for frequency in unscaled]
    kept = [min(1.0, max(0.0, (count - 1) / 3)) for count in turns]
    return [frequency * (share + (1 - share) / 8) for frequency, share in zip(unscaled, kept, strict=True)]


def angles(b: GraphBuilder, size: LlamaSize) -> tuple[str, str]:
    """Add cosines and sines of rotary positions, [sequence, width of a head]."""
    frequency = b.constant("rotary.frequencies", np.asarray(2 * frequencies(size), b.angle_dtype))
    places = b.apply("arange", name="rotary.places", dtype=b.angle_dtype, extents={"i": size.sequence})
    angle = b.apply("einsum", places, frequency, name="rotary.angles", equation="s,j->sj")
    cos, sin = (
        b.cast(b.apply(function, angle, name=f"rotary.{function}"), b.dtype, f"rotary.{function}.cast")
        for function in ("cos", "sin")
    )
    return cos, sin


@dataclass(frozen=True, slots=True)
class Layers:
    """Pre-norm layers of one network: its builder, size, angles of positions, and what experts take."""

    b: GraphBuilder
    size: LlamaSize
    angles: tuple[str, str]
    capacity: float

    def attention(self, x: str, name: str) -> str:
        """Add to x [b, s, d] what its positions attend to, themselves and before, in its norm."""
        b, size = self.b, self.size
        norm, head = rms_norm(b, x, f"{name}.norm"), size.head_width
        q, k, v = (
            project(
                b,
                norm,
                f"{name}.{part}",
                WeightProduct("bsd,hed->bhse", (count, head, size.width), bias=size.qkv_bias),
            )
            for part, count in (("q", size.heads), ("k", size.groups), ("v", size.groups))
        )
        if size.qk_norm:
            q, k = (rms_norm(b, heads, f"{name}.{part}.norm") for part, heads in (("q", q), ("k", k)))
        q, k = (
            b.apply("rotary", heads, *self.angles, name=f"{name}.{part}.rotary", half=head // 2)
            for part, heads in (("q", q), ("k", k))
        )
        mixed = attend(b, (q, k, v), name, causal=True)
        back = WeightProduct("bhse,dhe->bsd", (size.width, size.heads, head), self._gain, bias=False)
        return b.apply("add", x, project(b, mixed, f"{name}.out", back), name=f"{name}.sum")

    def mlp(self, x: str, name: str) -> str:
        """Add to x [b, s, d] its norm through fully connected layers."""
        norm = rms_norm(self.b, x, f"{name}.norm")
        y = self._connected(norm, name, ("bsd,df->bsf", "bsf,fd->bsd"))
        return self.b.apply("add", x, y, name=f"{name}.sum")

    def experts(self, x: str, name: str) -> str:
        """Add to x [b, s, d] its norm through the experts that each token chooses, weighted by a softmax of scores."""
        b, (_, length, width), size = self.b, self.b.shape(x), self.size
        norm = rms_norm(b, x, f"{name}.norm")
        router = WeightProduct("bsd,de->bse", (width, size.experts), bias=False)
        scores = project(b, norm, f"{name}.router", router)
        outputs = (f"{name}.scores", f"{name}.choices")
        scores, choices = b.apply_all("topk", scores, name=f"{name}.topk", outputs=outputs, k=size.chosen, dim=2)
        gates = softmax(b, scores, f"{name}.gates")
        capacity = min(length, math.ceil(self.capacity * size.chosen * length / size.experts))
        slots = b.apply("expert_slots", choices, name=f"{name}.slots", capacity=capacity)
        copies = b.apply("expand", norm, name=f"{name}.copies", dims=(2,), extents={"e0": size.chosen})
        places: dict[str, Value] = {"e": size.experts, "c": capacity}
        y = b.apply("dispatch", copies, slots, name=f"{name}.dispatch", capacity=capacity, extents=places)
        y = self._connected(y, name, ("becd,edf->becf", "becf,efd->becd"), (size.experts,))
        y = b.apply("collect", y, slots, name=f"{name}.collect", capacity=capacity)
        y = b.apply("einsum", y, gates, name=f"{name}.mixed", equation="bskd,bsk->bsd")
        return b.apply("add", x, y, name=f"{name}.sum")

    def _connected(self, x: str, name: str, equations: tuple[str, str], leading: tuple[int, ...] = ()) -> str:
        """Project up, activate and project down; weights have the leading dimensions of experts."""
        size = self.size
        up = WeightProduct(equations[0], (*leading, size.width, size.hidden), RELU_GAIN, bias=False)
        y = self._activated(x, name, up)
        down = WeightProduct(equations[1], (*leading, size.hidden, size.width), self._gain, bias=False)
        return project(self.b, y, f"{name}.down", down)

    def _activated(self, x: str, name: str, up: WeightProduct) -> str:
        """One projection through a GELU or, `gated`, one through SiLU times another."""
        b = self.b
        if not self.size.gated:
            return b.apply("gelu", project(b, x, f"{name}.up", up), name=f"{name}.gelu")
        gate, linear = (project(b, x, f"{name}.{part}", up) for part in ("gate", "up"))
        gate = b.apply(self.size.activation, gate, name=f"{name}.{self.size.activation}")
        return b.apply("mul", gate, linear, name=f"{name}.product")

    @property
    def _gain(self) -> float:
        return residual_gain(2 * self.size.layers)
