"""A model of one's own: two fully connected layers for the 8 by 8 digit images."""

from planner.graph import Graph, GraphBuilder, Optimizer, Recipe, training_graph
from planner.models.layers import classify, linear

PIXELS, HIDDEN, CLASSES = 64, 128, 10


def two_layers(batch: int = 64, dtype: str = "float32", micro_batches: int = 1, recompute: str = "none") -> Graph:
    """Forward, backward and weight update of one training iteration; the options of `plan` are the parameters."""
    b, recipe = GraphBuilder(dtype), Recipe(micro_batches, recompute)
    images = b.input("images", (recipe.samples(batch), PIXELS))
    hidden = b.apply("relu", linear(b, images, HIDDEN, "fc1"), name="relu1")
    logits = linear(b, hidden, CLASSES, "fc2")
    return training_graph(b, classify(b, logits), Optimizer("momentum", lr=0.05), recipe=recipe)
