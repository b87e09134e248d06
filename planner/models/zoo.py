"""Model names and the functions that build them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from planner.errors import GraphError
from planner.graph.ir import Graph
from planner.models import cnn, mlp, rnn, wresnet
from planner.models.options import ModelOptions


@dataclass(frozen=True, slots=True)
class Family:
    """A family of models: how its names are spelled, an example, and the function from the name's numbers."""

    pattern: str
    example: str
    build: Callable[[str, str, ModelOptions], Graph]


_NUMBER = r"[1-9]\d*"
_WIDTH = r"[1-9]\d*k?"

ZOO: dict[str, Family] = {
    "mlp-L-H": Family(rf"mlp-({_NUMBER})-({_WIDTH})", "mlp-4-8192", mlp.build),
    "cnn-L-C": Family(rf"cnn-({_NUMBER})-({_WIDTH})", "cnn-5-2048", cnn.build),
    "wresnet-L-W": Family(rf"wresnet-({_NUMBER})-(\d+(?:\.\d+)?)", "wresnet-152-10", wresnet.build),
    "rnn-L-H": Family(rf"rnn-({_NUMBER})-({_WIDTH})", "rnn-8-8k", rnn.build),
}


def build(name: str, options: ModelOptions | None = None) -> Graph:
    """Return the checked training graph of a zoo model: forward, backward and weight update.

    A width may be written in units of 1024: "rnn-8-8k". Raises GraphError for a name or options that fit no model.
    """
    for family in ZOO.values():
        match = re.fullmatch(family.pattern, name, re.ASCII)
        if match:
            first, second = match.groups()
            return family.build(first, second, options or ModelOptions())
    known = ", ".join(f"{spelling} (such as {family.example})" for spelling, family in ZOO.items())
    raise GraphError(f"unknown model {name!r}, the zoo has {known}")
