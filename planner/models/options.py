"""What can be chosen about a model besides its name: every family's options derive from those of training."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Any

from planner.errors import GraphError
from planner.graph.build import MIXED, GraphBuilder
from planner.graph.ir import FLOATING, Graph
from planner.graph.optimizers import CONSTANTS, OF_GRADIENTS, OPTIMIZERS, Optimizer
from planner.graph.training import RECOMPUTE, Recipe, training_graph

CHOICES = {"dtype": (*FLOATING, *MIXED), "optimizer": tuple(OPTIMIZERS), "recompute": RECOMPUTE}
"""The options whose value is one of several names."""


LR = 0.01
ADAM_LR = 3e-4
"""Learning rates where none is given; Adam's, whose steps are of that size, is LLaMA's (arXiv:2302.13971)."""

ADAMS = ("adam", "adamw")

RUNNING = "Running averages of batch norm's statistics, for evaluation."


def option(default: Any, meaning: str) -> Any:
    """Declare an option of a family with its default; None stands for what the model makes of its other numbers."""
    return field(default=default, metadata={"help": meaning})


@dataclass(frozen=True, slots=True)
class Training:
    """What every family has. An option is a count (`int`), a number from 0 (`float`), a switch or a name.

    Raises GraphError for a value out of range.
    """

    batch: int = option(32, "Samples per iteration, over all workers.")
    dtype: str = option("float32", "Of weights and activations; mixed: bfloat16, with weights and states in float32.")
    optimizer: str = option("momentum", "What updates the weights; none: forward and backward only.")
    lr: float | None = option(None, f"Learning rate; default: {LR:g}, of adam and adamw {ADAM_LR:g}.")
    momentum: float = option(0.9, "Of the optimizer momentum.")
    beta1: float = option(0.9, "Of adam and adamw.")
    beta2: float = option(0.999, "Of adam and adamw.")
    eps: float = option(1e-8, "Of adam, adamw, rmsprop and adagrad.")
    alpha: float = option(0.99, "Of rmsprop.")
    decay: float = option(0.01, "Of the weights, by adamw.")
    micro_batches: int = option(1, "Into how many the batch is cut, whose gradients are added up before one update.")
    recompute: str = option(
        "none",
        "Activations that the backward pass computes again: those within attention (selective), or within segments.",
    )
    loss_scale: float = option(1.0, "Of the loss's gradient, and what weights' gradients are divided by.")
    clip_norm: float | None = option(None, "What the norm of all gradients together is scaled down to, if at all.")
    clip_value: float | None = option(None, "What every element of a gradient is bounded by, if at all.")
    weight_decay: float = option(0.0, "What times the weight is added to its gradient.")

    def __post_init__(self) -> None:
        for declared in fields(self):
            kind = getattr(declared.type, "__name__", str(declared.type))
            _check(declared.name, kind.removesuffix(" | None"), getattr(self, declared.name), declared.default)

        self.recipe.samples(self.batch)

    @property
    def samples(self) -> int:
        """Samples of one micro-batch."""
        return self.recipe.samples(self.batch)

    @property
    def recipe(self) -> Recipe:
        """How an iteration goes through the batch."""
        return Recipe(self.micro_batches, self.recompute, self.loss_scale)

    def train(self, b: GraphBuilder, metrics: Mapping[str, str], also: Iterable[str] = ()) -> Graph:
        """Training graph of the forward graph in `b`, with these options' optimizer and recipe."""
        constants = {name: getattr(self, name) for name in (*CONSTANTS, *OF_GRADIENTS)}
        if self.lr is None:
            constants["lr"] = ADAM_LR if self.optimizer in ADAMS else LR
        optimizer = Optimizer(self.optimizer, **constants)
        return training_graph(b, metrics, optimizer, also, self.recipe)


def _check(name: str, kind: str, value: object, default: object) -> None:
    if value is None and default is None:
        return
    if kind == "int" and (type(value) is not int or value < 1):
        raise GraphError(f"option {name} must be a positive integer, found {value!r}")
    if kind == "float" and not (type(value) in (int, float) and 0 <= value < math.inf):  # type: ignore[operator]
        raise GraphError(f"option {name} must be a finite number from 0, found {value!r}")
    if kind == "bool" and type(value) is not bool:
        raise GraphError(f"option {name} must be True or False, found {value!r}")
    if kind == "str" and (not isinstance(value, str) or value not in CHOICES.get(name, (value,))):
        raise GraphError(f"option {name} must be one of {', '.join(CHOICES.get(name, ('a name',)))}, found {value!r}")


@dataclass(frozen=True, slots=True)
class ImageOptions(Training):
    """What models of images have."""

    image: int = option(224, "Height and width of the images.")
    channels: int = option(3, "Channels of the images.")


@dataclass(frozen=True, slots=True)
class Scaled(ImageOptions):
    """What AlexNet and VGG-16 have."""

    classes: int = option(1000, "Classes to tell apart.")
    width: float = option(1.0, "Factor of every width but the classes'.")


@dataclass(frozen=True, slots=True)
class Tokens(Training):
    """What transformers have.

    Attention is blind to the keys' bias. Its gradient is rounding alone, which Adam blows up to full steps, so that
    with Adam and `qkv_bias` no two ways of computing agree on it.
    """

    sequence: int = option(1024, "Tokens in a sample; of an encoder-decoder, in its target.")
    vocabulary: int = option(32000, "How many different tokens there are.")
    heads: int | None = option(None, "Attention heads; default: width / 64.")
    tied: bool = option(True, "Whether embeddings are the output layer's weights too.")
    qkv_bias: bool = option(True, "Whether queries, keys and values have biases.")
    dropout: float = option(0.0, "Probability, below 1, that an element of embeddings and residuals is dropped.")
    flash: bool = option(False, "Whether attention is one operator, which does not store its matrix.")
    attention_dropout: float = option(0.0, "The same of what a position attends to; by attention that is not flash.")

    def __post_init__(self) -> None:
        Training.__post_init__(self)
        for name in ("dropout", "attention_dropout"):
            if getattr(self, name) >= 1:
                raise GraphError(f"option {name} must be below 1, found {getattr(self, name)!r}")
        if self.flash and self.attention_dropout:
            raise GraphError("option attention_dropout must be 0 where attention stores no matrix (flash)")


@dataclass(frozen=True, slots=True)
class Published(Training):
    """What language models of published sizes have: what is not chosen is as published."""

    layers: int | None = option(None, "How many blocks.")
    sequence: int | None = option(None, "Tokens in a sample; of an encoder-decoder, in its target.")
    vocabulary: int | None = option(None, "How many different tokens there are.")
    tied: bool | None = option(None, "Whether embeddings are the output layer's weights too.")

    @property
    def chosen(self) -> dict[str, Any]:
        """What was chosen, by name."""
        values = ((name, getattr(self, name)) for name in ("layers", "sequence", "vocabulary", "tied"))
        return {name: value for name, value in values if value is not None}


def width(text: str) -> int:
    """Return the number written in decimal, or in units of 1024 with a "k"."""
    return int(text[:-1]) * 1024 if text.endswith("k") else int(text)


def scaled(units: int, factor: float) -> int:
    """Return `units` times the option `width`; GraphError unless that is a positive integer."""
    product = units * Fraction(factor)
    if product.denominator != 1 or product < 1:
        raise GraphError(f"option width must make {units} units a positive integer, found {factor!r}")
    return int(product)
