"""What can be chosen about a zoo model besides its name."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from planner.errors import GraphError
from planner.graph.optimizers import OPTIMIZERS, Optimizer

FLOAT_DTYPES = ("float32", "float64")
COUNTS = ("batch", "unroll", "input_width", "embedding", "sequence", "vocabulary")
OPTIONAL_COUNTS = ("image", "channels", "classes", "source_sequence", "heads")
NUMBERS = ("width", "lr", "momentum", "beta1", "beta2", "eps", "alpha", "decay")


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Options of all models; None stands for the model's own default, and a model ignores what it has no use for.

    `batch` samples per iteration over all workers. `image` is the images' height and width, `channels` how many they
    have. `unroll`: timesteps; `input_width`: width of a timestep's input. `batch_norm` after every convolution.
    `width` multiplies the widths of AlexNet and VGG-16. `backbone` and `embedding`: a Classifier-C's backbone model
    and the width of its embedding. `sequence`: tokens per sample, of an encoder-decoder's target; `source_sequence`:
    of its source, by default as many; `vocabulary`: how many different tokens; `heads` per attention; `tied`: whether
    tokens' embeddings are the output layer's weights too; `qkv_bias`: whether queries, keys and values have biases.
    (Attention is blind to the keys' bias. Its gradient is rounding alone, which Adam blows up to full steps, so that
    with Adam no two ways of computing agree on it.)
    `first_input_gradient`: whether the first layer's data gradient is computed, which training has no use for but
    some published costs include (MLP only). `optimizer` is a name in `OPTIMIZERS`, with its constants; "none" gives
    forward and backward only.
    """

    batch: int = 32
    dtype: str = "float32"
    image: int | None = None
    channels: int | None = None
    classes: int | None = None
    unroll: int = 20
    input_width: int = 512
    batch_norm: bool | None = None
    width: float = 1.0
    backbone: str = "wresnet-50-1"
    embedding: int = 512
    sequence: int = 1024
    source_sequence: int | None = None
    vocabulary: int = 32000
    heads: int | None = None
    tied: bool = True
    qkv_bias: bool = True
    first_input_gradient: bool = False
    optimizer: str = "momentum"
    lr: float = 0.01
    momentum: float = 0.9
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    alpha: float = 0.99
    decay: float = 0.01

    def __post_init__(self) -> None:
        """Raise GraphError for a value out of range."""
        for name in (*COUNTS, *OPTIONAL_COUNTS):
            value = getattr(self, name)
            left_to_model = value is None and name in OPTIONAL_COUNTS
            if not left_to_model and (type(value) is not int or value < 1):
                raise GraphError(f"option {name} must be a positive integer, found {value!r}")
        for name in NUMBERS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise GraphError(f"option {name} must be a finite number from 0, found {value!r}")
        for name, known in (("dtype", FLOAT_DTYPES), ("optimizer", tuple(OPTIMIZERS))):
            value = getattr(self, name)
            if value not in known:
                raise GraphError(f"option {name} must be one of {', '.join(known)}, found {value!r}")

    @property
    def optimizer_settings(self) -> Optimizer:
        """The optimizer and its constants."""
        shared = {field.name: getattr(self, field.name) for field in fields(Optimizer) if field.name != "name"}
        return Optimizer(self.optimizer, **shared)
