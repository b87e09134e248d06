"""Language models without rotary positions: Transformer-L-D, GPT-2, GPT-3 and BLOOM.

Transformers have pre-norm blocks with GELU. Transformer-L-D is a GPT of any size. The published models have biases,
tied embeddings, and attention that stores no score matrix. BLOOM has no position embeddings: a head's score of a key
decreases with distance (ALiBi, Press et al., 2022).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from planner.graph.build import GraphBuilder
from planner.graph.ir import Graph
from planner.models.layers import (
    Blocks,
    classify_tokens,
    embed,
    heads_of,
    layer_norm,
    table,
)
from planner.models.options import Published, Tokens, Training, width as read_width


@dataclass(frozen=True, slots=True)
class GptSize:
    """Sizes and kinds of parts; `alibi` replaces position embeddings."""

    layers: int
    width: int
    heads: int
    vocabulary: int = 50257
    sequence: int = 1024
    tied: bool = True
    alibi: bool = False
    qkv_bias: bool = True
    dropout: float = 0.0
    flash: bool = True
    gelu: str = "tanh"
    attention_dropout: float = 0.0


SIZES = {
    "gpt2": GptSize(12, 768, 12),
    "gpt2-medium": GptSize(24, 1024, 16),
    "gpt2-large": GptSize(36, 1280, 20),
    "gpt2-xl": GptSize(48, 1600, 25),
    "gpt-3-175b": GptSize(96, 12288, 96, sequence=2048),
    "bloom-176b": GptSize(70, 14336, 112, 250880, 2048, alibi=True),
}
"""Radford et al. (2019); Brown et al. (2020), without its sparse layers; BigScience (2022)."""


def build_published(name: str, options: Published) -> Graph:
    """Return the training graph of a published model: see `training`."""
    return training(replace(SIZES[name], **options.chosen), options)


def training(size: GptSize, options: Training) -> Graph:
    """Return the training graph: inputs "tokens" [batch, sequence] and "labels" [batch, sequence], mean loss."""
    b = GraphBuilder(options.dtype)
    words = b.integers("tokens", (options.samples, size.sequence), size.vocabulary)
    weight = table(b, "embedding", size.vocabulary, size.width)
    bias = distance_bias(b, size.heads, size.sequence) if size.alibi else None
    blocks = Blocks(
        b, size.heads, 2 * size.layers, size.qkv_bias, size.dropout, size.flash, size.gelu, bias, size.attention_dropout
    )
    x = blocks.drop(_embedded(b, words, weight, size.alibi), "embedding.dropped")
    for layer in range(size.layers):
        x = blocks.attention(x, f"l{layer}.attention", causal=True)
        x = blocks.mlp(x, f"l{layer}.mlp")
    x = layer_norm(b, x, "norm")
    return options.train(b, classify_tokens(b, x, weight if size.tied else None, size.vocabulary))


def _embedded(b: GraphBuilder, words: str, weight: str, alibi: bool) -> str:
    """Embed tokens; with ALiBi, normalize the embeddings instead of adding positions."""
    if not alibi:
        return embed(b, words, weight, "embedding")
    return layer_norm(b, b.apply("embedding", weight, words, name="embedding"), "embedding.norm")


def slopes(heads: int) -> list[float]:
    """Return by how much each head's scores fall per position of distance: powers of two between 1/256 and 1.

    If the number of heads is not a power of two, the additional heads get slopes between those of the others.
    """
    power = 1 << (heads.bit_length() - 1)
    steps = [8 * (head + 1) / power for head in range(power)]
    steps += [8 * (2 * head + 1) / (2 * power) for head in range(heads - power)]
    return [math.pow(2.0, -step) for step in steps]


def distance_bias(b: GraphBuilder, heads: int, sequence: int) -> str:
    """Add the bias of every head for every key: [heads, sequence]. A softmax depends only on differences."""
    slope = b.constant("alibi.slopes", np.asarray(slopes(heads), b.angle_dtype))
    places = b.apply("arange", name="alibi.places", dtype=b.angle_dtype, extents={"i": sequence})
    bias = b.apply("einsum", slope, places, name="alibi.bias", equation="h,k->hk")
    return b.cast(bias, b.dtype, "alibi.cast")


def build_transformer(layers: str, width: str, options: Tokens) -> Graph:
    """Return the training graph of a GPT: inputs "tokens" [batch, sequence] and "labels" [batch, sequence].

    Heads are 64 wide by default and feed-forward layers 4 D; the loss is the mean over all positions. The output layer
    shares the weights of the token embeddings unless `options.tied` is off. Raises GraphError for heads that do not
    divide D.
    """
    units = read_width(width)
    size = GptSize(
        int(layers), units, heads_of(units, options), options.vocabulary, options.sequence, options.tied,
        qkv_bias=options.qkv_bias, dropout=options.dropout, flash=options.flash, gelu="none",
        attention_dropout=options.attention_dropout,
    )  # fmt: skip
    return training(size, options)
