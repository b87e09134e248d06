"""Random small training graphs, a function of a seed; every kind of shape that a search has to cope with."""

import random
from functools import cache

from planner.graph import GraphBuilder, Init
from planner.graph.optimizers import Optimizer
from planner.graph.training import training_graph
from planner.models.layers import add_bias, classify, convolution, flatten, global_pool, layer_norm, linear, softmax

UNARY = ("relu", "tanh", "sigmoid", "gelu")
BINARY = ("add", "mul", "maximum")
OPTIMIZERS = ("none", "sgd", "momentum", "adam")


def chain(draw, b, x):
    """Fully connected layers of any widths, element-wise operators and biases between."""
    for layer in range(draw.randint(1, 3)):
        x = linear(b, x, draw.randint(2, 9), f"fc{layer}")
        if draw.random() < 0.3:
            x = add_bias(b, x, f"fc{layer}", 1)
        if draw.random() < 0.6:
            x = b.apply(draw.choice(UNARY), x, name=f"f{layer}")
    return x


def residual(draw, b, x):
    """Layers whose input is added to their output."""
    for layer in range(draw.randint(1, 3)):
        y = linear(b, x, b.shape(x)[1], f"fc{layer}")
        if draw.random() < 0.5:
            y = b.apply(draw.choice(UNARY), y, name=f"f{layer}")
        x = b.apply("add", y, x, name=f"sum{layer}")
    return x


def diamond(draw, b, x):
    """Two branches of one input that meet again; one may be the input as it is."""
    width = draw.randint(2, 6)
    for layer in range(draw.randint(1, 2)):
        left = linear(b, x, width, f"left{layer}")
        straight = b.shape(x)[1] == width and draw.random() < 0.3
        right = x if straight else linear(b, x, width, f"right{layer}")
        if draw.random() < 0.5:
            left = b.apply(draw.choice(UNARY), left, name=f"f{layer}")
        x = b.apply(draw.choice(BINARY), left, right, name=f"join{layer}")
    return x


def shared(draw, b, x):
    """One weight at several layers, as it is and transposed."""
    width = b.shape(x)[1]
    weight = b.weight("w", (width, width), Init("uniform", 1.0))
    for layer in range(draw.randint(2, 3)):
        x = b.apply("mm", x, weight, name=f"fc{layer}", transpose_b=draw.random() < 0.5)
        if draw.random() < 0.4:
            x = b.apply(draw.choice(UNARY), x, name=f"f{layer}")
    return x


def recurrent(draw, b, x):
    """Timesteps of one cell with the same weights; their gradients are summed."""
    batch, width = b.shape(x)
    weight = b.weight("wh", (width, width), Init("uniform", 1.0))
    h = x
    for step in range(draw.randint(2, 3)):
        with b.timestep(step):
            h = b.apply("mm", h, weight, name="product")
            if draw.random() < 0.5:
                h = b.apply("add", h, b.input(f"x.{step}", (batch, width)), name="sum")
            h = b.apply("tanh", h, name="h")
    return h


def reductions(draw, b, x):
    """A softmax or layer norm from their parts, then perhaps a layer."""
    x = draw.choice((softmax, layer_norm))(b, x, "norm")
    if draw.random() < 0.5:
        x = linear(b, x, draw.randint(2, 5), "fc")
    return x


def elementwise(draw, b, x):
    """Element-wise operators only, on an input and a weight of its shape, or of one of its dimensions."""
    dims = draw.choice([(0, 1), (0,), (1,)])
    shape = tuple(b.shape(x)[dim] for dim in dims)
    weight = b.weight("w", shape, Init("uniform", 1.0))
    for layer in range(draw.randint(1, 3)):
        x = b.apply(draw.choice(("add", "mul")), x, weight, name=f"with{layer}", dims=dims)
        x = b.apply(draw.choice(UNARY), x, name=f"f{layer}")
    return x


def convolutions(draw, b, x):
    """A convolution or two on small images, then a pooled or flattened classifier's layer."""
    batch, channels = b.shape(x)
    x = b.input("images", (batch, channels, draw.randint(3, 5), draw.randint(2, 4)))
    for layer in range(draw.randint(1, 2)):
        kernel, stride = draw.choice([(3, 1), (3, 2), (1, 1)])
        x = convolution(b, x, f"conv{layer}", (draw.randint(2, 4), kernel, stride))
        if draw.random() < 0.5:
            x = b.apply("relu", x, name=f"relu{layer}")
    x = global_pool(b, x, "pool") if draw.random() < 0.6 else flatten(b, x, "flat")
    return linear(b, x, draw.randint(2, 4), "fc")


KINDS = (chain, residual, diamond, shared, recurrent, reductions, elementwise, convolutions)


@cache
def random_graph(seed):
    """Return the training graph of a seed; the kind of shape goes round with the seed."""
    draw, b = random.Random(seed), GraphBuilder()
    kind = KINDS[seed % len(KINDS)]
    x = b.input("x", (draw.randint(2, 9), draw.randint(2, 8)))
    x = kind(draw, b, x)
    if draw.random() < 0.3 and len(b.shape(x)) == 2:
        metrics = classify(b, x)
    else:
        metrics = {"loss": b.apply("sum", x, name="loss", dims=tuple(range(len(b.shape(x)))))}
    return training_graph(b, metrics, Optimizer(draw.choice(OPTIMIZERS)))
