"""Model names and the functions that build them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from planner.errors import GraphError
from planner.graph.ir import Graph
from planner.models import alexnet, cnn, encoder_decoder, face, mlp, rnn, transformer, vgg, wresnet
from planner.models.options import ModelOptions


@dataclass(frozen=True, slots=True)
class Family:
    """A family of models: how its names are spelled, an example, and the function from the name's numbers."""

    pattern: str
    example: str
    build: Callable[..., Graph]


_NUMBER = r"[1-9]\d{0,8}"
_WIDTH = r"[1-9]\d{0,8}k?"

ZOO: dict[str, Family] = {
    "mlp-L-H": Family(rf"mlp-({_NUMBER})-({_WIDTH})", "mlp-4-8192", mlp.build),
    "cnn-L-C": Family(rf"cnn-({_NUMBER})-({_WIDTH})", "cnn-5-2048", cnn.build),
    "wresnet-L-W": Family(wresnet.PATTERN, "wresnet-152-10", wresnet.build),
    "rnn-L-H": Family(rf"rnn-({_NUMBER})-({_WIDTH})", "rnn-8-8k", rnn.build),
    "alexnet": Family("alexnet", "alexnet", alexnet.build),
    "vgg-16": Family("vgg-16", "vgg-16", vgg.build),
    "classifier-C": Family(rf"classifier-({_NUMBER})", "classifier-85742", face.build),
    "transformer-L-D": Family(rf"transformer-({_NUMBER})-({_WIDTH})", "transformer-24-2048", transformer.build),
    "encoder-decoder-L-D": Family(
        rf"encoder-decoder-({_NUMBER})-({_WIDTH})", "encoder-decoder-6-1024", encoder_decoder.build
    ),
}
"""From a family's spelling to the family. `build` takes the numbers of the name as they are written, then options."""


def build(name: str, options: ModelOptions | None = None) -> Graph:
    """Return the checked training graph of a zoo model: forward, backward and weight update.

    A width may be written in units of 1024: "rnn-8-8k". Raises GraphError for a name or options that fit no model.
    """
    for family in ZOO.values():
        match = re.fullmatch(family.pattern, name, re.ASCII)
        if match:
            return family.build(*match.groups(), options or ModelOptions())
    known = ", ".join(_spelled(spelling, family.example) for spelling, family in ZOO.items())
    raise GraphError(f"unknown model {name!r}, the zoo has {known}")


def _spelled(spelling: str, example: str) -> str:
    return spelling if example == spelling else f"{spelling} (such as {example})"
