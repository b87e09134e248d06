"""Networks of papers: AlexNet, VGG-16, a face recognizer, an encoder-decoder transformer, and a stacked LSTM.

AlexNet is the single-device version, with the channels of Krizhevsky's "One weird trick for parallelizing convolutional
neural networks"; like current implementations it has no response normalization. VGG-16 is configuration D of Simonyan
and Zisserman, without biases in its convolutions. Classifier-C is a face recognizer whose last layer distinguishes very
many classes (DistPar Sec A.4). The decoder blocks of an encoder-decoder also attend to the encoder's result (Vaswani et
al., "Attention is all you need"). They all read the same result, so the graph is not a chain.

RNN-L-H has L stacked LSTM layers of H hidden units, unrolled, with a softmax at every timestep (Tofu Sec 7). The
weights of the four gates have a leading dimension of 4, so sharding the hidden units keeps a unit's gates on one
worker. There are no biases and no projections.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from planner.errors import GraphError
from planner.graph.build import ZEROS, GraphBuilder
from planner.graph.ir import Graph
from planner.models.classifiers import PATTERN, Backbone, features
from planner.models.layers import (
    RELU_GAIN,
    TO_HEADS,
    Blocks,
    WeightProduct,
    add_bias,
    classify,
    classify_tokens,
    convolution,
    embed,
    flatten,
    global_pool,
    heads_of,
    layer_norm,
    linear,
    max_pool,
    project,
    softmax_cross_entropy,
    table,
    uniform,
)
from planner.models.options import Scaled, Tokens, Training, option, scaled, width, width as read_width
from planner.models.zoo import NUMBER, SIZES, Family

HIDDEN = 4096


@dataclass(frozen=True, slots=True)
class Layer:
    """A convolution: suffix of its name, its size, and the kernel of the max pool of stride 2 after it, if any.

    A pool's name ends in the part of the suffix before the underscore.
    """

    mark: str
    channels: int
    kernel: int = 3
    stride: int = 1
    padding: int = 1
    pool: int = 0


ALEXNET = (
    Layer("1", 64, 11, 4, 2, pool=3),
    Layer("2", 192, 5, 1, 2, pool=3),
    Layer("3", 384),
    Layer("4", 256),
    Layer("5", 256, pool=3),
)
VGG_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Channels of VGG-16's stages, and their numbers of layers."""

VGG_16 = tuple(
    Layer(f"{stage}_{number}", channels, pool=2 if number == count else 0)
    for stage, (channels, count) in enumerate(VGG_STAGES, start=1)
    for number in range(1, count + 1)
)


def build_pooled(layers: Sequence[Layer], biases: bool, options: Scaled) -> Graph:
    """Return the training graph, with every width except the classes scaled by `options.width`.

    Raises GraphError for images that are too small (AlexNet needs 63 pixels, VGG-16 32), and if a scaled width is not
    an integer.
    """
    b = GraphBuilder(options.dtype)
    x = b.input("images", (options.samples, options.channels, options.image, options.image))
    for layer in layers:
        size = scaled(layer.channels, options.width), layer.kernel, layer.stride, layer.padding
        x = convolution(b, x, f"conv{layer.mark}", size)
        if biases:
            x = add_bias(b, x, f"conv{layer.mark}", 1)
        x = b.apply("relu", x, name=f"relu{layer.mark}")
        if layer.pool:
            x = max_pool(b, x, f"pool{layer.mark.partition('_')[0]}", layer.pool)
    x, hidden = flatten(b, x, "flat"), scaled(HIDDEN, options.width)
    for number in (1, 2):
        x = add_bias(b, linear(b, x, hidden, f"fc{number}", gain=RELU_GAIN), f"fc{number}", 1)
        x = b.apply("relu", x, name=f"fc{number}.relu")
    return options.train(b, classify(b, add_bias(b, linear(b, x, options.classes, "fc3"), "fc3", 1)))


@dataclass(frozen=True, slots=True)
class Classifier(Backbone):
    """Options of a face recognizer."""

    backbone: str = option("wresnet-50-1", "Backbone of classifier-C.")
    embedding: int = option(512, "Embedding width of classifier-C.")


def build_classifier(classes: str, options: Classifier) -> Graph:
    """Return the training graph of a backbone, a linear embedding of its pooled features, and a linear classifier.

    The backbone is a wide ResNet, by default ResNet-50; the embedding is 512 wide by default. Real data sets have 85742
    and 360232 classes. Raises GraphError for a backbone that is not a wide ResNet.
    """
    match = re.fullmatch(PATTERN, options.backbone, re.ASCII)
    if match is None:
        raise GraphError(f"option backbone must name a model wresnet-L-W, found {options.backbone!r}")
    b = GraphBuilder(options.dtype)
    depth, widening = match.groups()
    pooled = global_pool(b, features(b, depth, widening, options), "pool")
    embedding = linear(b, pooled, options.embedding, "embedding")
    return options.train(b, classify(b, linear(b, embedding, int(classes), "fc")))


def cross_attention(blocks: Blocks, x: str, memory: str, name: str) -> str:
    """Add to x [b, s, d] the attention of its norm to `memory` [b, t, d]."""
    b, (_, _, width) = blocks.b, blocks.b.shape(x)
    head = (blocks.heads, width // blocks.heads, width)
    norm = layer_norm(b, x, f"{name}.norm")
    q = project(b, norm, f"{name}.q", WeightProduct("bsd,hed->bhse", head, bias=blocks.qkv_bias))
    fused = project(b, memory, f"{name}.kv", WeightProduct(TO_HEADS, (2, *head), bias=blocks.qkv_bias))
    parts = tuple(f"{name}.{part}" for part in "kv")
    k, v = b.apply_all("unbind", fused, name=f"{name}.unbind", outputs=parts, dim=0, n=2)
    return blocks.attend(x, (q, k, v), name, causal=False)


@dataclass(frozen=True, slots=True)
class EncoderDecoder(Tokens):
    """Options of an encoder-decoder."""

    source_sequence: int | None = option(None, "Source sequence length. Default: that of the target.")


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
        x = cross_attention(decoder, x, memory, f"decoder.l{layer}.cross")
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


FAMILIES = {
    "rnn-L-H": Family(f"rnn{SIZES}", "rnn-8-8k", build_rnn, RnnOptions),
    "alexnet": Family("alexnet", "alexnet", partial(build_pooled, ALEXNET, True), Scaled),
    "vgg-16": Family("vgg-16", "vgg-16", partial(build_pooled, VGG_16, False), Scaled),
    "classifier-C": Family(rf"classifier-({NUMBER})", "classifier-85742", build_classifier, Classifier),
    "encoder-decoder-L-D": Family(
        f"encoder-decoder{SIZES}", "encoder-decoder-6-1024", build_encoder_decoder, EncoderDecoder
    ),
}
"""The families by spelling, which the zoo finds through the entry point group `tensor_partitioner.models`."""
