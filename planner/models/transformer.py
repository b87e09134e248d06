"""Transformer-L-D, a GPT of any size, and Encoder-decoder-L-D, whose decoder blocks attend to the encoder's result too.

Both have L pre-norm blocks of width D (of each kind) with GELU and learned positions; the second is otherwise that of
Vaswani et al., "Attention is all you need". Every decoder block reads the same result, so its graph is no chain.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.graph.build import GraphBuilder
from planner.graph.ir import Graph
from planner.models import gpt
from planner.models.blocks import Blocks, classify_tokens, embed, heads_of, table
from planner.models.layers import layer_norm
from planner.models.options import Tokens, option
from planner.models.options import width as read_width


@dataclass(frozen=True, slots=True)
class EncoderDecoder(Tokens):
    """What can be chosen about an encoder-decoder."""

    source_sequence: int | None = option(None, "Tokens that the encoder reads; default: as many as in the target.")


def build(layers: str, width: str, options: Tokens) -> Graph:
    """Return the training graph of a GPT: inputs "tokens" [batch, sequence] and "labels" [batch, sequence].

    Heads are 64 wide and fully connected layers 4 D; the loss is the mean over all positions. The output layer's
    weights are the tokens' embeddings unless `options.tied` is off. Raises GraphError for heads that do not divide D.
    """
    units = read_width(width)
    size = gpt.GptSize(
        int(layers), units, heads_of(units, options), options.vocabulary, options.sequence, options.tied,
        qkv_bias=options.qkv_bias, dropout=options.dropout, flash=options.flash, gelu="none",
        attention_dropout=options.attention_dropout,
    )  # fmt: skip
    return gpt.training(size, options)


def build_encoder_decoder(layers: str, width: str, options: EncoderDecoder) -> Graph:
    """Return the training graph: inputs "source" and "target" [batch, sequence] and "labels" [batch, sequence].

    Source, target and output layer share one table of embeddings unless `options.tied` is off. Raises GraphError for
    heads that do not divide D.
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
