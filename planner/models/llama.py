"""Language models with RMS norm, rotary positions and SwiGLU: Llama, Mixtral, DeepSeek, and models of any size.

Queries share key and value heads, layers have no biases, and attention stores no score matrix. In Mixtral every token
chooses two experts. An expert accepts, per sample, its equal share of choices times `capacity`; later choices are
dropped, which leaves the residual sum unchanged. Mixtral was also trained with a load-balancing loss, which is not
included here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from planner.errors import GraphError
from planner.graph.build import GraphBuilder
from planner.graph.ir import Graph, Value
from planner.models.layers import (
    RELU_GAIN,
    WeightProduct,
    attend,
    classify_tokens,
    project,
    residual_gain,
    rms_norm,
    softmax,
    table,
)
from planner.models.options import Published, Training, option, width as read_width


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434).

    Queries, and keys with values, are projected to vectors of `queries` and `keys` elements and from there to heads;
    with 0 `queries`, queries are projected at once. The last `rotated` elements of a head's queries and keys have
    rotary positions, and all heads share those of keys. Values have `value` elements.
    """

    queries: int
    keys: int
    rotated: int
    value: int


@dataclass(frozen=True, slots=True)
class LlamaSize:
    """Sizes; `groups` is the number of key and value heads, `hidden` the width of the feed-forward layers.

    `head` is the width of a head; 0 divides the model's width among the heads. `base` is that of rotary positions,
    `stretched` selects Llama 3.1's frequencies. Without `experts` the layers are dense. Feed-forward layers without
    `gated` have two matrices and a GELU; a gate uses `activation`. With `qkv_bias` queries, keys and values have
    biases; with `qk_norm` queries and keys have an RMS norm per head. In models with experts, the first `dense` layers
    have none, and every `step`-th of the others has; layers without experts are `dense_hidden` wide. `shared` is the
    width of an expert that all tokens use. With `latent`, attention is that of DeepSeek-V2.
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
    dense: int = 0
    step: int = 1
    dense_hidden: int = 0
    shared: int = 0
    latent: Latent | None = None

    @property
    def head_width(self) -> int:
        """Width of a head."""
        return self.head or self.width // self.heads


SIZES = {
    "llama-2-7b": LlamaSize(32, 4096, 32, 32, 11008, 32000, 4096),
    "llama-2-70b": LlamaSize(80, 8192, 64, 8, 28672, 32000, 4096),
    "llama-3.1-8b": LlamaSize(32, 4096, 32, 8, 14336, 128256, 8192, 5e5, stretched=True),
    "llama-3.1-70b": LlamaSize(80, 8192, 64, 8, 28672, 128256, 8192, 5e5, stretched=True),
    "llama-3.1-405b": LlamaSize(126, 16384, 128, 8, 53248, 128256, 8192, 5e5, stretched=True),
}
"""Touvron et al. (2023); Grattafiori et al. (2024), with the sequence length of most of its training."""

MLP = "bsd,df->bsf", "bsf,fd->bsd"
HEAD_WIDTH, MULTIPLE = 128, 256
"""For models of any size: the width of a head, and a divisor of the width of the feed-forward layers."""

HEAD_WIDTHS = range(2, (1 << 14) + 1, 2)
"""Possible widths of a head, which must be even: rotary positions turn pairs of elements."""

EXPERTS = {"mixtral-8x7b": LlamaSize(32, 4096, 32, 8, 14336, 32000, 4096, 1e6, experts=8)}
"""Jiang et al. (2024)."""


@dataclass(frozen=True, slots=True)
class Experts(Published):
    """Options of mixture-of-experts models."""

    capacity: float = option(1.25, "Capacity factor: tokens an expert takes, relative to an even share.")


def build(name: str, options: Published) -> Graph:
    """Return the training graph of a published model: see `training`."""
    return training(replace(SIZES[name], **options.chosen), options)


@dataclass(frozen=True, slots=True)
class SizedOptions(Training):
    """Options of a model of any size."""

    sequence: int = option(4096, "Sequence length in tokens (of the target, in an encoder-decoder).")
    vocabulary: int = option(32000, "Vocabulary size.")
    heads: int | None = option(None, "Attention heads; default: width / 64; for llama-L-D, width / 128.")
    groups: int | None = option(None, "Key-value heads (grouped-query attention). Default: as many as heads.")
    head_size: int | None = option(None, "Head dimension. Default: width / heads.")
    hidden: int | None = option(None, "Hidden width of the MLP. Default: 8/3 width, rounded up to 256.")
    tied: bool = option(False, "Tie the embedding and the output layer.")
    gated: bool = option(True, "Gated MLP (SwiGLU, three matrices) instead of GELU (two).")
    experts: int | None = option(None, "Experts per layer. Default: a dense MLP.")
    chosen_experts: int = option(2, "Experts per token (top-k).")
    shared_hidden: int | None = option(None, "Hidden width of the experts that all tokens use. Default: none.")
    dense_layers: int | None = option(None, "Leading layers without experts. Default: none.")
    dense_hidden: int | None = option(None, "Hidden width of layers without experts. Default: hidden.")
    key_rank: int | None = option(None, "Rank of keys and values (multi-head latent attention). Default: full.")
    query_rank: int | None = option(None, "Rank of queries in latent attention. Default: full.")
    rotated_size: int = option(64, "Part of the head dimension with rotary positions, in latent attention.")
    value_size: int = option(128, "Head dimension of values in latent attention.")
    capacity: float = option(1.25, "Capacity factor: tokens an expert takes, relative to an even share.")


NEEDED = {"dense_layers": "experts", "dense_hidden": "experts", "shared_hidden": "experts", "query_rank": "key_rank"}
"""Options of models of any size that have no effect without another."""


def build_sized(layers: str, width: str, options: SizedOptions) -> Graph:
    """Return the training graph of a model of any size: see `training`. Heads are 128 wide by default.

    Raises GraphError for heads that do not divide the width or have an odd width, and for groups that do not divide
    them.
    """
    units = read_width(width)
    heads = options.heads or max(1, units // HEAD_WIDTH)
    groups = options.groups or heads
    if heads % groups or (options.head_size is None and units % (2 * heads)):
        raise GraphError(
            f"options heads and groups: heads must have an even width and divide {units}, and groups must divide "
            f"heads; found {heads} heads and {groups} groups"
        )
    if options.head_size is not None and options.head_size not in HEAD_WIDTHS:
        raise GraphError(f"option head_size: must be even and from 2 to {HEAD_WIDTHS[-1]}, found {options.head_size}")
    hidden = options.hidden or math.ceil(8 * units / 3 / MULTIPLE) * MULTIPLE
    for name, needed in NEEDED.items():
        if getattr(options, name) is not None and getattr(options, needed) is None:
            raise GraphError(f"option {name}: expected option {needed} beside it")
    if (options.dense_layers or 0) > int(layers):
        raise GraphError(f"option dense_layers: must be at most the {layers} layers, found {options.dense_layers}")
    if options.experts and not 1 <= options.chosen_experts <= options.experts:
        raise GraphError(f"option chosen_experts: must be from 1 to {options.experts}, found {options.chosen_experts}")
    size = LlamaSize(
        int(layers), units, heads, groups, hidden, options.vocabulary, options.sequence, tied=options.tied,
        experts=options.experts or 0, chosen=options.chosen_experts, gated=options.gated, head=options.head_size or 0,
        dense=options.dense_layers or 0, dense_hidden=options.dense_hidden or 0, shared=options.shared_hidden or 0,
        latent=_latent(options, options.head_size or units // heads),
    )  # fmt: skip
    return training(size, options, options.capacity)


def _latent(options: SizedOptions, head: int) -> Latent | None:
    """Return latent attention, if the options select it. Raises GraphError for an odd or too large `rotated_size`."""
    if options.key_rank is None:
        return None
    if options.rotated_size % 2 or options.rotated_size >= head:
        raise GraphError(f"option rotated_size: must be even and below {head}, found {options.rotated_size}")
    return Latent(options.query_rank or 0, options.key_rank, options.rotated_size, options.value_size)


def build_experts(name: str, options: Experts) -> Graph:
    """Return the training graph of a published mixture-of-experts model: see `training`."""
    return training(replace(EXPERTS[name], **options.chosen), options, options.capacity)


def training(size: LlamaSize, options: Training, capacity: float = 1.0) -> Graph:
    """Return the training graph: inputs "tokens" [batch, sequence] and "labels" [batch, sequence], mean loss.

    Raises GraphError for experts without capacity.
    """
    if not capacity:
        raise GraphError(f"option capacity: must be above 0, found {capacity}")
    b = GraphBuilder(options.dtype)
    words = b.integers("tokens", (options.samples, size.sequence), size.vocabulary)
    weight = table(b, "embedding", size.vocabulary, size.width)
    layers = Layers(b, size, angles(b, size), capacity)
    x = b.apply("embedding", weight, words, name="embedding")
    for layer in range(size.layers):
        x = layers.attention(x, f"l{layer}.attention")
        has_experts = size.experts and layer >= size.dense and (layer - size.dense + 1) % size.step == 0
        x = layers.experts(x, f"l{layer}.experts") if has_experts else layers.mlp(x, f"l{layer}.mlp")
    x = rms_norm(b, x, "norm")
    return options.train(b, classify_tokens(b, x, weight if size.tied else None, size.vocabulary))


def frequencies(size: LlamaSize) -> list[float]:
    """Return the rotary frequency of each pair of a head's elements, in radians per position.

    Llama 3.1 divides by 8 the frequencies with less than one turn in 8192 positions, keeps those with more than four
    turns, and interpolates between.
    """
    width = size.latent.rotated if size.latent else size.head_width
    unscaled = [size.base ** (-2 * pair / width) for pair in range(width // 2)]
    if not size.stretched:
        return unscaled
    turns = [8192 * frequency / (2 * math.pi) for frequency in unscaled]
    kept = [min(1.0, max(0.0, (count - 1) / 3)) for count in turns]
    return [frequency * (share + (1 - share) / 8) for frequency, share in zip(unscaled, kept, strict=True)]


def angles(b: GraphBuilder, size: LlamaSize) -> tuple[str, str]:
    """Add cosines and sines of rotary positions; return both names: [sequence, head width]."""
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
    """Pre-norm layers of one network: its builder, its sizes, rotary angles, and the experts' capacity factor."""

    b: GraphBuilder
    size: LlamaSize
    angles: tuple[str, str]
    capacity: float

    def attention(self, x: str, name: str) -> str:
        """Add to x [b, s, d] the causal self-attention of its norm."""
        b, size = self.b, self.size
        norm = rms_norm(b, x, f"{name}.norm")
        mixed = attend(b, self._latent(norm, name) if size.latent else self._heads(norm, name), name, causal=True)
        back = WeightProduct("bhse,dhe->bsd", (size.width, size.heads, b.shape(mixed)[-1]), self._gain, bias=False)
        return b.apply("add", x, project(b, mixed, f"{name}.out", back), name=f"{name}.sum")

    def _heads(self, norm: str, name: str) -> tuple[str, str, str]:
        """Return queries, keys and values [b, heads, s, e]."""
        b, size, head = self.b, self.size, self.size.head_width
        q, k, v = (
            project(
                b, norm, f"{name}.{part}", WeightProduct("bsd,hed->bhse", (count, head, size.width), bias=size.qkv_bias)
            )
            for part, count in (("q", size.heads), ("k", size.groups), ("v", size.groups))
        )
        if size.qk_norm:
            q, k = (rms_norm(b, heads, f"{name}.{part}.norm") for part, heads in (("q", q), ("k", k)))
        return self._turned(q, f"{name}.q"), self._turned(k, f"{name}.k"), v

    def _turned(self, heads: str, name: str) -> str:
        return self.b.apply("rotary", heads, *self.angles, name=f"{name}.rotary", half=self.b.shape(heads)[-1] // 2)

    def _latent(self, norm: str, name: str) -> tuple[str, str, str]:
        """Return queries, keys and values [b, heads, s, e] of latent attention."""
        b, size, latent = self.b, self.size, self.size.latent
        assert latent is not None

        def down(part: str, rank: int) -> str:
            product = WeightProduct("bsd,rd->bsr", (rank, size.width), bias=False)
            return rms_norm(b, project(b, norm, f"{name}.{part}.down", product), f"{name}.{part}.norm")

        def up(part: str, x: str, units: int) -> str:
            product = WeightProduct("bsr,her->bhse", (size.heads, units, b.shape(x)[-1]), bias=False)
            return project(b, x, f"{name}.{part}", product)

        queries = down("queries", latent.queries) if latent.queries else norm
        keys, sizes = down("keys", latent.keys), (size.head_width - latent.rotated, latent.rotated)
        product = WeightProduct("bsd,ed->bse", (latent.rotated, size.width), bias=False)
        shared = project(b, norm, f"{name}.shared", product)
        shared = b.apply("expand", shared, name=f"{name}.heads", dims=(1,), extents={"e0": size.heads})
        turned = self._turned(up("turned", queries, latent.rotated), f"{name}.q"), self._turned(shared, f"{name}.k")
        q, k = (
            b.apply("cat", up(part, of, sizes[0]), rotated, name=f"{name}.{part}.heads", dim=3, sizes=sizes)
            for part, of, rotated in zip("qk", (queries, keys), turned, strict=True)
        )
        return q, k, up("v", keys, latent.value)

    def mlp(self, x: str, name: str) -> str:
        """Add to x [b, s, d] a feed-forward layer of its norm."""
        norm = rms_norm(self.b, x, f"{name}.norm")
        y = self._connected(norm, name, MLP, self.size.dense_hidden or self.size.hidden)
        return self.b.apply("add", x, y, name=f"{name}.sum")

    def experts(self, x: str, name: str) -> str:
        """Add to x [b, s, d] the experts that each token of its norm chooses, weighted by a softmax of scores."""
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
        y = self._connected(y, name, ("becd,edf->becf", "becf,efd->becd"), size.hidden, (size.experts,))
        y = b.apply("collect", y, slots, name=f"{name}.collect", capacity=capacity)
        y = b.apply("einsum", y, gates, name=f"{name}.mixed", equation="bskd,bsk->bsd")
        if size.shared:
            y = b.apply("add", y, self._connected(norm, f"{name}.shared", MLP, size.shared), name=f"{name}.both")
        return b.apply("add", x, y, name=f"{name}.sum")

    def _connected(
        self, x: str, name: str, equations: tuple[str, str], hidden: int, leading: tuple[int, ...] = ()
    ) -> str:
        """Project up, activate and project down; weights have a leading dimension of experts."""
        up = WeightProduct(equations[0], (*leading, self.size.width, hidden), RELU_GAIN, bias=False)
        y = self._activated(x, name, up)
        down = WeightProduct(equations[1], (*leading, hidden, self.size.width), self._gain, bias=False)
        return project(self.b, y, f"{name}.down", down)

    def _activated(self, x: str, name: str, up: WeightProduct) -> str:
        """Apply one projection and a GELU or, if `gated`, one projection through SiLU times another."""
        b = self.b
        if not self.size.gated:
            return b.apply("gelu", project(b, x, f"{name}.up", up), name=f"{name}.gelu")
        gate, linear = (project(b, x, f"{name}.{part}", up) for part in ("gate", "up"))
        gate = b.apply(self.size.activation, gate, name=f"{name}.{self.size.activation}")
        return b.apply("mul", gate, linear, name=f"{name}.product")

    @property
    def _gain(self) -> float:
        return residual_gain(2 * self.size.layers)
