"""Training graphs: data (`ir`), validation (`checking`), construction (`build`), gradients, optimizers, JSON."""

from planner.graph.build import GraphBuilder as GraphBuilder
from planner.graph.ir import Graph as Graph, Init as Init
from planner.graph.optimizers import Optimizer as Optimizer
from planner.graph.training import Recipe as Recipe, training_graph as training_graph
