"""A model of one's own: two fully connected layers for the 8 by 8 digit images."""

from planner.graph import Graph, GraphBuilder, Optimizer, training_graph
from planner.models.layers import classify, linear

BATCH, PIXELS, HIDDEN, CLASSES = 64, 64, 128, 10


def two_layers() -> Graph:
    """Forward, backward and weight update of one training iteration."""
    b = GraphBuilder()
    images = b.input("images", (BATCH, PIXELS))
    hidden = b.apply("relu", linear(b, images, HIDDEN, "fc1"), name="relu1")
    logits = linear(b, hidden, CLASSES, "fc2")
    return training_graph(b, classify(b, logits), Optimizer("momentum", lr=0.05))
