"""Repeated segments beside all runs of isomorphic stretches, enumerated and compared by networkx."""

import random
from dataclasses import replace
from itertools import pairwise

import networkx
import pytest

import planner
from planner.graph.build import GraphBuilder
from planner.graph.ir import Init
from planner.graph.optimizers import Optimizer
from planner.graph.repeats import FewSegments, Repeats, few_segments, repeats_of
from planner.graph.training import training_graph

WIDTH, BATCH = 4, 2


def drawn_graph(seed):
    """Blocks of random operators, copied, sometimes with another operator or operand, weights shared now and then."""
    chance, b = random.Random(seed), GraphBuilder()
    tensors = [b.input("x", (BATCH, WIDTH))]
    shared, names = b.weight("shared", (WIDTH, WIDTH), Init("uniform", 1.0)), iter(range(1000))
    block = [(chance.choice(["mm", "mm", "cast", "relu", "add", "mul"]), chance.randint(1, 3)) for _ in range(3)]
    for _ in range(chance.randint(2, 4)):
        for drawn, back in block[: chance.choice([3, 3, 2, 1])]:
            op = "relu" if chance.random() < 0.05 else drawn
            operands = [tensors[-1], tensors[max(-len(tensors), -back)]]
            if op in ("mm", "cast"):
                number = next(names)
                w = shared if chance.random() < 0.15 else b.weight(f"w{number}", (WIDTH, WIDTH), Init("uniform", 1.0))
                operands = [tensors[-1], b.apply("neg", w, name=f"c{number}") if op == "cast" else w]
            if chance.random() < 0.1:
                operands[0] = chance.choice(tensors)
            if op in ("add", "mul") and chance.random() < 0.3:
                operands[1] = chance.choice(tensors[:6])
            op = "mm" if op == "cast" else op
            tensors.append(b.apply(op, *operands[: 1 if op == "relu" else 2], name=f"n{next(names)}"))
    read = {name for node in b.nodes for name in node.inputs}
    last = b.apply("mm", tensors[-1], shared, name="head")
    for number, name in enumerate(name for name in tensors[1:-1] if name not in read):
        last = b.apply("add", last, name, name=f"unread{number}")
    loss = b.apply("sum", last, name="loss", dims=(0, 1))
    return training_graph(b, {"loss": loss}, Optimizer(chance.choice(["none", "adam"])))


class Enumerated:
    """All runs of isomorphic stretches of a forward pass without unrolled cells, in which a link is a node."""

    def __init__(self, graph):
        self.tensors = graph.tensors
        self.maker = {name: node for node in graph.nodes for name in node.outputs}
        data = {"x"}
        for node in graph.nodes:
            if node.forward is None and not data.isdisjoint(node.inputs):
                data.update(node.outputs)
        roles = ("activation", "loss")
        self.nodes = [
            node
            for node in graph.nodes
            if node.forward is None
            and not data.isdisjoint(node.outputs)
            and graph.tensors[node.outputs[0]].role in roles
        ]
        self.origins = {name: at for at, node in enumerate(self.nodes) for name in node.outputs}
        self.read = [{leaf for name in node.inputs for leaf in self.leaves(name)} for node in self.nodes]

    def leaves(self, name):
        if name in self.origins or name not in self.maker:
            return {name}
        return {leaf for operand in self.maker[name].inputs for leaf in self.leaves(operand)}

    def picture(self, start, stop, label):
        """A stretch as a graph: operators in their order, what makes their weights, and what they read of others."""
        drawn = networkx.MultiDiGraph()
        for at in range(start, stop):
            drawn.add_node(("node", at), label=(self.nodes[at].op, at - start))
            for operand, name in enumerate(self.nodes[at].inputs):
                self.draw(drawn, name, start, label)
                drawn.add_edge(self.vertex(name, start), ("node", at), label=operand)
        return drawn

    def vertex(self, name, start):
        return ("node", self.origins[name]) if self.origins.get(name, -1) >= start else ("tensor", name)

    def draw(self, drawn, name, start, label):
        if self.origins.get(name, -1) >= start or ("tensor", name) in drawn:
            return
        tensor = self.tensors[name]
        is_made = name in self.maker and name not in self.origins
        holds_samples = name in self.origins or tensor.role == "input"
        of = self.maker[name].op if is_made else label(self.origins.get(name, -1)) if holds_samples else tensor.role
        drawn.add_node(("tensor", name), label=(of, tensor.shape))
        for operand, inner in enumerate(self.maker[name].inputs if is_made else ()):
            self.draw(drawn, inner, start, label)
            drawn.add_edge(self.vertex(inner, start), ("tensor", name), label=operand)

    def are_alike(self, begin, period, number):
        """Whether segments `number` and the next one of a run are isomorphic, and the second reads of the first."""
        starts = [begin + (number + add) * period for add in range(2)]

        def labels(start):
            return lambda at: "any" if number == 0 else ("back", start - at) if at >= begin else "before"

        first, second = (self.picture(start, start + period, labels(start)) for start in starts)
        alike = networkx.is_isomorphic(
            first,
            second,
            node_match=lambda a, b: a["label"] == b["label"],
            edge_match=lambda a, b: sorted(e["label"] for e in a.values()) == sorted(e["label"] for e in b.values()),
        )
        within = range(starts[0], starts[1])
        return alike and any(
            self.origins.get(name, -1) in within for at in range(period) for name in self.nodes[starts[1] + at].inputs
        )

    def has_weights(self, start, period):
        inside = range(start, start + period)
        weights = {name for at in inside for name in self.read[at] if self.tensors[name].role == "weight"}
        return any(all(at in inside for at, read in enumerate(self.read) if name in read) for name in weights)

    def runs(self, begin, end):
        """The best run first, as `runs.py` ranks them, then what is left on both sides of it."""
        possible = []
        for period in range(1, (end - begin) // 2 + 1):
            for start in range(begin, end - 2 * period + 1):
                segments = 1
                while (
                    start + (segments + 1) * period <= end
                    and self.has_weights(start + (segments - 1) * period, period)
                    and self.has_weights(start + segments * period, period)
                    and self.are_alike(start, period, segments - 1)
                ):
                    segments += 1
                if segments > 1:
                    possible.append(self.rank(start, period, segments))
        if not possible:
            return []
        links, period, *_, start = min(possible)
        return [*self.runs(begin, start), (start, period, -links // period), *self.runs(start - links, end)]

    def rank(self, start, period, segments):
        border = start + period
        crossing = {
            name for node in self.nodes[border:] for name in node.inputs if self.origins.get(name, border) < border
        }
        weights = [self.tensors[name].nbytes for name in self.read[start] if self.tensors[name].role == "weight"]
        crossing_bytes = sum(self.tensors[name].nbytes for name in crossing)
        return -period * segments, period, crossing_bytes, -sum(weights), start


@pytest.mark.parametrize("first", range(0, 300, 100))
def test_runs_are_those_of_the_enumeration(first):
    counts = []
    for seed in range(first, first + 100):
        graph = drawn_graph(seed)
        every, repeats = Enumerated(graph), repeats_of(graph)
        runs = []
        for run in repeats.runs:
            members = [[n for n, node in enumerate(every.nodes) if repeats.segment_of(node.name) == s] for s in run]
            assert [at for numbers in members for at in numbers] == [*range(members[0][0], members[-1][-1] + 1)]
            runs.append((members[0][0], len(members[0]), len(run)))
        assert runs == every.runs(0, len(every.nodes)), seed
        counts.append(len(runs))
    assert {0, 1} <= set(counts)


def test_a_graph_without_layers_has_no_segments():
    empty = GraphBuilder().finish({}, {})
    for graph in (empty, planner.model("transformer-1-16", heads=2, sequence=8, vocabulary=16, batch=4)):
        assert repeats_of(graph).runs == ()
        assert few_segments(graph) == FewSegments(graph)


@pytest.mark.parametrize("name", ["llama-4-32", "encoder-decoder-4-32", "mlp-5-32"])
def test_what_has_equal_positions_corresponds(name):
    """Gradients, updates and states, too: operators and shapes are equal, and so is who reads what."""
    options = {} if name.startswith("mlp") else {"heads": 4, "sequence": 16, "vocabulary": 64}
    graph = planner.model(name, batch=8, micro_batches=2, optimizer="adam", **options)
    repeats, nodes = repeats_of(graph), {node.name: node for node in graph.nodes}
    assert all(node.name in repeats.nodes for node in graph.nodes if node.forward in repeats.nodes)
    weights = {name for name, tensor in graph.tensors.items() if tensor.role == "state"}
    assert len(weights.intersection(repeats.tensors)) > len(weights) / 2
    for run in repeats.runs:
        members = [
            {at: name for name, (segment, at) in repeats.nodes.items() if segment == number} for number in run[1:-1]
        ]
        for first, second in pairwise(members):
            assert first.keys() == second.keys()
            for position in first:
                node, twin = nodes[first[position]], nodes[second[position]]
                assert node.op == twin.op
                operands = zip((*node.inputs, *node.outputs), (*twin.inputs, *twin.outputs), strict=True)
                for here, there in operands:
                    assert graph.tensors[here].shape == graph.tensors[there].shape
                    places = repeats.tensors.get(here), repeats.tensors.get(there)
                    assert here == there if None in places else places[0].position == places[1].position


def test_layers_that_differ_in_a_probability_repeat():
    """Layers whose numbers of operations differ do not: an opaque operator states it."""
    graph = planner.model("transformer-4-8", batch=2, sequence=4, vocabulary=6, heads=2, dropout=0.1)
    for name, repeats in (("p", repeats_of(graph)), ("operations", Repeats())):
        nodes = (replace(node, attrs={**node.attrs, name: 1 / (2 + at)}) for at, node in enumerate(graph.nodes))
        assert repeats_of(replace(graph, nodes=tuple(nodes))) == repeats
    assert len(repeats_of(graph).runs[0]) == 4
