"""Classifier-C: a face recogniser whose last layer tells very many classes apart (DistPar Sec A.4)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from planner.errors import GraphError
from planner.graph.build import GraphBuilder
from planner.graph.ir import Graph
from planner.models import wresnet
from planner.models.layers import classify, global_pool, linear
from planner.models.options import option


@dataclass(frozen=True, slots=True)
class Options(wresnet.Backbone):
    """What can be chosen about a face recogniser."""

    backbone: str = option("wresnet-50-1", "The wide ResNet below Classifier-C.")
    embedding: int = option(512, "Width of Classifier-C's embedding.")


def build(classes: str, options: Options) -> Graph:
    """Return the training graph of a backbone, a linear embedding of its pooled features, and a linear classifier.

    The backbone is a wide ResNet, by default ResNet-50; the embedding is 512 wide unless options say otherwise. Real
    data sets have 85742 and 360232 classes. Raises GraphError for a backbone that is no wide ResNet.
    """
    match = re.fullmatch(wresnet.PATTERN, options.backbone, re.ASCII)
    if match is None:
        raise GraphError(f"option backbone must name a model wresnet-L-W, found {options.backbone!r}")
    b = GraphBuilder(options.dtype)
    depth, widening = match.groups()
    pooled = global_pool(b, wresnet.features(b, depth, widening, options), "pool")
    embedding = linear(b, pooled, options.embedding, "embedding")
    return options.train(b, classify(b, linear(b, embedding, int(classes), "fc")))
