"""Options of models; those of every family extend the options of training."""

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
"""Options whose value is one of several names."""


LR = 0.01
ADAM_LR = 3e-4
"""Default learning rates; Adam's, whose steps are of that size, is LLaMA's (arXiv:2302.13971)."""

ADAMS = ("adam", "adamw")

RUNNING = "Keep running statistics of batch norm, for evaluation."


def option(default: Any, meaning: str) -> Any:
    """Declare an option of a family with its default.

    None means a value that follows from the model's other numbers.
    """
    return field(default=default, metadata={"help": meaning})


@dataclass(frozen=True, slots=True)
class Training:
    """Options of every family. An option is a count (`int`), a number of at least 0 (`float`), a switch or a name.

    Raises GraphError for a value out of range.
    """

    batch: int = option(32, "Global batch: samples per step, over all workers.")
    dtype: str = option("float32", "Precision. mixed: bfloat16 compute, float32 weights and optimizer state.")
    optimizer: str = option("momentum", "Optimizer. none: forward and backward passes only.")
    lr: float | None = option(None, f"Learning rate. Default: {LR:g}; adam and adamw: {ADAM_LR:g}.")
    momentum: float = option(0.9, "Momentum of the optimizer momentum.")
    beta1: float = option(0.9, "Decay rate of moments: adam and adamw.")
    beta2: float = option(0.999, "Decay rate of moments: adam and adamw.")
    eps: float = option(1e-8, "Term added to the denominator: adam, adamw, rmsprop and adagrad.")
    alpha: float = option(0.99, "Smoothing constant of rmsprop.")
    decay: float = option(0.01, "Decoupled weight decay of adamw.")
    micro_batches: int = option(1, "Micro-batches per step (gradient accumulation).")
    recompute: str = option("none", "Activation checkpointing: none, selective (attention only), or segments.")
    loss_scale: float = option(1.0, "Loss scale: the loss's gradient is multiplied by it, gradients are divided by it.")
    clip_norm: float | None = option(None, "Clip gradients to this global norm.")
    clip_value: float | None = option(None, "Clip each element of a gradient to this absolute value.")
    weight_decay: float = option(0.0, "L2 penalty: this times the weight is added to its gradient.")

    def __post_init__(self) -> None:
        for declared in fields(self):
            kind = getattr(declared.type, "__name__", str(declared.type))
            _check(declared.name, kind.removesuffix(" | None"), getattr(self, declared.name), declared.default)

        self.recipe.samples(self.batch)

    @property
    def samples(self) -> int:
        """Samples per micro-batch."""
        return self.recipe.samples(self.batch)

    @property
    def recipe(self) -> Recipe:
        """Training options of an iteration."""
        return Recipe(self.micro_batches, self.recompute, self.loss_scale)

    @property
    def update(self) -> Optimizer:
        """The optimizer, with its constants."""
        constants = {name: getattr(self, name) for name in (*CONSTANTS, *OF_GRADIENTS)}
        if self.lr is None:
            constants["lr"] = ADAM_LR if self.optimizer in ADAMS else LR
        return Optimizer(self.optimizer, **constants)

    def train(self, b: GraphBuilder, metrics: Mapping[str, str], also: Iterable[str] = ()) -> Graph:
        """Return the training graph of the forward graph in `b`, with these options' optimizer and recipe."""
        return training_graph(b, metrics, self.update, also, self.recipe)


def _check(name: str, kind: str, value: object, default: object) -> None:
    if value is None and default is None:
        return
    if kind == "int" and (type(value) is not int or value < 1):
        raise GraphError(f"option {name} must be a positive integer, found {value!r}")
    if kind == "float" and not (type(value) in (int, float) and 0 <= value < math.inf):  # type: ignore[operator]
        raise GraphError(f"option {name} must be a finite number of at least 0, found {value!r}")
    if kind == "bool" and type(value) is not bool:
        raise GraphError(f"option {name} must be True or False, found {value!r}")
    if kind == "str" and (not isinstance(value, str) or value not in CHOICES.get(name, (value,))):
        raise GraphError(f"option {name} must be one of {', '.join(CHOICES.get(name, ('a name',)))}, found {value!r}")


@dataclass(frozen=True, slots=True)
class ImageOptions(Training):
    """Options of image models."""

    image: int = option(224, "Height and width of the images.")
    channels: int = option(3, "Channels of the images.")


@dataclass(frozen=True, slots=True)
class Scaled(ImageOptions):
    """Options of AlexNet and VGG-16."""

    classes: int = option(1000, "Number of classes.")
    width: float = option(1.0, "Multiplies every layer's width, except the last.")


@dataclass(frozen=True, slots=True)
class Tokens(Training):
    """Options of transformers.

    Attention does not depend on the keys' bias, so the gradient of that bias is rounding error, which Adam amplifies to
    full steps. Therefore, with Adam and `qkv_bias`, no two ways of computing agree on it.
    """

    sequence: int = option(1024, "Sequence length in tokens (of the target, in an encoder-decoder).")
    vocabulary: int = option(32000, "Vocabulary size.")
    heads: int | None = option(None, "Attention heads; default: width / 64.")
    tied: bool = option(True, "Tie the embedding and the output layer.")
    qkv_bias: bool = option(True, "Biases in the query, key and value projections.")
    dropout: float = option(0.0, "Dropout probability of embeddings and residuals, below 1.")
    flash: bool = option(False, "Fused attention that does not store the score matrix.")
    attention_dropout: float = option(0.0, "Dropout probability of attention scores; not with --flash.")

    def __post_init__(self) -> None:
        Training.__post_init__(self)
        for name in ("dropout", "attention_dropout"):
            if getattr(self, name) >= 1:
                raise GraphError(f"option {name} must be below 1, found {getattr(self, name)!r}")
        if self.flash and self.attention_dropout:
            raise GraphError("option attention_dropout must be 0 with flash, which stores no attention matrix")


@dataclass(frozen=True, slots=True)
class Published(Training):
    """Options of language models of published sizes; None keeps the published value."""

    layers: int | None = option(None, "Number of layers.")
    sequence: int | None = option(None, "Sequence length in tokens (of the target, in an encoder-decoder).")
    vocabulary: int | None = option(None, "Vocabulary size.")
    tied: bool | None = option(None, "Tie the embedding and the output layer.")

    @property
    def chosen(self) -> dict[str, Any]:
        """The options that were set, by name."""
        values = ((name, getattr(self, name)) for name in ("layers", "sequence", "vocabulary", "tied"))
        return {name: value for name, value in values if value is not None}


def width(text: str) -> int:
    """Return a number written in decimal, or in units of 1024 with a "k"."""
    return int(text[:-1]) * 1024 if text.endswith("k") else int(text)


def scaled(units: int, factor: float) -> int:
    """Return `units` times the option `width`; raise GraphError unless that is a positive integer."""
    product = units * Fraction(factor)
    if product.denominator != 1 or product < 1:
        raise GraphError(f"option width must make {units} units a positive integer, found {factor!r}")
    return int(product)
