"""Training graphs: data (`ir`), validation (`checking`), construction (`build`), gradients, optimizers, JSON."""

from planner.graph.build import GraphBuilder
from planner.graph.ir import Graph, Init
from planner.graph.optimizers import Optimizer
from planner.graph.training import Recipe, training_graph

__all__ = ["Graph", "GraphBuilder", "Init", "Optimizer", "Recipe", "training_graph"]
