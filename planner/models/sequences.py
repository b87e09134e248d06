"""Models of sequences: Transformer-L-D, GPT-2, GPT-3 and BLOOM; Encoder-decoder-L-D; and RNN-L-H.

Transformers have pre-norm blocks with GELU. Transformer-L-D is a GPT of any size. The published models have biases,
tied embeddings, and attention that stores no score matrix. BLOOM has no position embeddings: a head's score of a key
decreases with distance (ALiBi, Press et al., 2022). The decoder blocks of an encoder-decoder also attend to the
encoder's result (Vaswani et al., "Attention is all you need"). They all read the same result, so the graph is not a
chain.

RNN-L-H has L stacked LSTM layers of H hidden units, unrolled, with a softmax at every timestep (Tofu Sec 7). The
weights of the four gates have a leading dimension of 4, so sharding the hidden units keeps a unit's gates on one
worker. There are no biases and no projections.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from planner.graph.build import ZEROS, GraphBuilder
from planner.graph.ir import Graph
from planner.models.layers import (
    Blocks,
    classify_tokens,
    embed,
    heads_of,
    layer_norm,
    softmax_cross_entropy,
    table,
    uniform,
)
from planner.models.options import Published, Tokens, Training, option, width, width as read_width


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


@dataclass(frozen=True, slots=True)
class EncoderDecoder(Tokens):
    """Options of an encoder-decoder."""

    source_sequence: int | None = option(None, "Source sequence length. Default: that of the target.")


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


def build_encoder_decoder(layers: str, width: str, options: EncoderDecoder) -> Graph:
    """Return the training graph: inputs "source" and "target" [batch, sequence] and "labels" [batch, sequence].

    Source, target and output layer share one embedding table unless `options.tied` is off. Raises GraphError for heads
    that do not divide D.
    """
    b, count, units = GraphBuilder(options.dtype), int(layers), read_width(width)
    heads = heads_of(units, options)
    encoder, decoder = (
        Blocks(b, heads, sums * count, options.qkv_bias, options.dropout, attention_dropout=options.attention_dropout)
        for sums in (2, 3)
    )  # fmt: skip
    source = b.integers("source", (options.samples, options.source_sequence or options.sequence), options.vocabulary)
    target = b.integers("target", (options.samples, options.sequence), options.vocabulary)
    names = ("embedding", "embedding") if options.tied else ("encoder.embedding", "decoder.embedding")
    weights = {name: table(b, name, options.vocabulary, units) for name in dict.fromkeys(names)}
    x = encoder.drop(embed(b, source, weights[names[0]], "encoder.embedding"), "encoder.embedding.dropped")
    for layer in range(count):
        x = encoder.attention(x, f"encoder.l{layer}.attention")
        x = encoder.mlp(x, f"encoder.l{layer}.mlp")
    memory = layer_norm(b, x, "encoder.norm")
    x = decoder.drop(embed(b, target, weights[names[1]], "decoder.embedding"), "decoder.embedding.dropped")
    for layer in range(count):
        x = decoder.attention(x, f"decoder.l{layer}.attention", causal=True)
        x = decoder.cross_attention(x, memory, f"decoder.l{layer}.cross")
        x = decoder.mlp(x, f"decoder.l{layer}.mlp")
    x = layer_norm(b, x, "decoder.norm")
    metrics = classify_tokens(b, x, weights[names[1]] if options.tied else None, options.vocabulary)
    return options.train(b, metrics)


GATES = ("i", "f", "g", "o")
GATE_EQUATION = "bi,ghi->bgh"


@dataclass(frozen=True, slots=True)
class RnnOptions(Training):
    """Options of an unrolled LSTM."""

    unroll: int = option(20, "Number of unrolled time steps.")
    input_width: int = option(512, "Input width of a time step.")
    classes: int = option(512, "Number of classes.")


def build_rnn(layers: str, hidden: str, options: RnnOptions) -> Graph:
    """Return the training graph of an unrolled LSTM: inputs "x.t" and "labels.t", mean loss over timesteps.

    The states before the first timestep are inputs of zeros. The metrics name the last timestep's logits and labels.
    """
    b = GraphBuilder(options.dtype)
    units, inputs = width(hidden), options.input_width
    cells = [
        _Cell(b, f"lstm{layer}", (options.samples, inputs if layer == 1 else units, units))
        for layer in range(1, int(layers) + 1)
    ]
    weight = b.weight("fc.w", (units, options.classes), uniform(units))
    losses, metrics = [], {}
    for step in range(options.unroll):
        with b.timestep(step):
            x = b.input(f"x.{step}", (options.samples, inputs))
            labels = b.integers(f"labels.{step}", (options.samples,), options.classes)
            for cell in cells:
                x = cell.advance(x)
            logits = b.apply("mm", x, weight, name="logits")
            losses.append(softmax_cross_entropy(b, logits, labels, "cross_entropy", options.samples * options.unroll))
            metrics = {"logits": logits, "labels": labels}
    loss = b.apply("add_n", *losses, name="loss")
    return options.train(b, {"loss": loss, **metrics})


class _Cell:
    """One LSTM layer: its weights, and its state after the timestep last added to the graph."""

    def __init__(self, b: GraphBuilder, name: str, sizes: tuple[int, int, int]) -> None:
        batch, inputs, hidden = sizes
        self.b = b
        self.name = name
        # Two products are added, so each has half of the variance.
        init = uniform(inputs + hidden)
        self.weight_x = b.weight(f"{name}.wx", (len(GATES), hidden, inputs), init)
        self.weight_h = b.weight(f"{name}.wh", (len(GATES), hidden, hidden), init)
        self.h = b.input(f"{name}.h.initial", (batch, hidden), ZEROS)
        self.c = b.input(f"{name}.c.initial", (batch, hidden), ZEROS)

    def advance(self, x: str) -> str:
        """Add one timestep with input x [batch, inputs]; return the new hidden state [batch, hidden]."""
        b, name = self.b, self.name
        from_x = b.apply("einsum", x, self.weight_x, name=f"{name}.x", equation=GATE_EQUATION)
        from_h = b.apply("einsum", self.h, self.weight_h, name=f"{name}.h_product", equation=GATE_EQUATION)
        gates = b.apply("add", from_x, from_h, name=f"{name}.gates")
        parts = tuple(f"{name}.{gate}.before" for gate in GATES)
        raw = b.apply_all("unbind", gates, name=f"{name}.unbind", outputs=parts, dim=1, n=len(GATES))
        i, f, g, o = (
            b.apply("tanh" if gate == "g" else "sigmoid", part, name=f"{name}.{gate}")
            for part, gate in zip(raw, GATES, strict=True)
        )
        kept = b.apply("mul", f, self.c, name=f"{name}.kept")
        added = b.apply("mul", i, g, name=f"{name}.added")
        self.c = b.apply("add", kept, added, name=f"{name}.c")
        self.h = b.apply("mul", o, b.apply("tanh", self.c, name=f"{name}.c_tanh"), name=f"{name}.h")
        return self.h
