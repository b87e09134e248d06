"""Training graphs: data (`ir`), validation (`check`), construction (`build`), gradients, optimizers, JSON."""

from planner.graph.autodiff import gradients
from planner.graph.build import GraphBuilder
from planner.graph.checking import check
from planner.graph.graph_json import from_data, load_graph, to_data
from planner.graph.ir import Entry, Graph, Init, Node, Tensor, Value
from planner.graph.optimizers import OPTIMIZERS, Optimizer
from planner.graph.training import Recipe, training_graph

__all__ = [
    "OPTIMIZERS",
    "Entry",
    "Graph",
    "GraphBuilder",
    "Init",
    "Node",
    "Optimizer",
    "Recipe",
    "Tensor",
    "Value",
    "check",
    "from_data",
    "gradients",
    "load_graph",
    "to_data",
    "training_graph",
]
