"""Transformer-L-D: a GPT of L pre-norm blocks of width D, with learned positions, and causal attention."""

from __future__ import annotations

from planner.graph.build import GraphBuilder
from planner.graph.ir import Graph
from planner.models.blocks import Blocks, classify_tokens, embed, heads_of, table, tokens
from planner.models.layers import layer_norm
from planner.models.options import Tokens
from planner.models.options import width as read_width


def build(layers: str, width: str, options: Tokens) -> Graph:
    """Return the training graph of a GPT: inputs "tokens" [batch, sequence] and "labels" [batch sequence].

    Heads are 64 wide and fully connected layers 4 D; the loss is the mean over all positions. The output layer's
    weights are the tokens' embeddings unless `options.tied` is off. Raises GraphError for heads that do not divide D.
    """
    b, count, units = GraphBuilder(options.dtype), int(layers), read_width(width)
    blocks = Blocks(b, heads_of(units, options), 2 * count, options.qkv_bias, options.dropout)
    words = tokens(b, "tokens", (options.samples, options.sequence), options.vocabulary)
    weight = table(b, "embedding", options.vocabulary, units)
    x = blocks.drop(embed(b, words, weight, "embedding"), "embedding.dropped")
    for layer in range(count):
        x = blocks.attention(x, f"l{layer}.attention", causal=True)
        x = blocks.mlp(x, f"l{layer}.mlp")
    x = layer_norm(b, x, "norm")
    metrics = classify_tokens(b, x, weight if options.tied else None, options.vocabulary)
    return options.train(b, metrics)
