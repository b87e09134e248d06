"""Modules are made without memory, whatever they are made or cast as, and are what they are with it."""

import subprocess
import sys
from unittest.mock import Mock

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from planner.errors import GraphError  # noqa: E402
from planner.pytorch import from_torch  # noqa: E402
from planner.pytorch.private import FakeTensor  # noqa: E402
from planner.pytorch.user_model import graph_of, imported, user_model  # noqa: E402


class Tied(nn.Module):
    """A table that is the head as well, positions by arange and a buffer of angles."""

    def __init__(self):
        super().__init__()
        self.table, self.places, self.head = nn.Embedding(50, 16), nn.Embedding(8, 16), nn.Linear(16, 50, bias=False)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.head.weight = self.table.weight
        self.register_buffer("angles", torch.arange(8.0)[:, None] / 10 ** (torch.arange(16.0) / 16), persistent=False)

    def forward(self, words):
        x = self.table(words) + self.places(torch.arange(words.shape[1], device=words.device))
        for layer in self.layers:
            x = x + layer(x * self.angles.cos().to(x.dtype))
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), words.flatten())


def example(cast):
    return cast(Tied()), torch.ones(4, 8, dtype=torch.long)


CASTS = {
    "as it is": lambda module: module,
    "to(bfloat16)": lambda module: module.to(torch.bfloat16),
    "double()": lambda module: module.double(),
    "there and back": lambda module: module.half().float(),
    "layer by layer": lambda module: module.apply(lambda part: part.bfloat16()),
}


def content(graph):
    return graph.tensors, graph.nodes, graph.updates, graph.metrics


@pytest.mark.parametrize("cast", CASTS.values(), ids=CASTS)
def test_a_cast_module_is_made_once_and_is_the_same_as_with_memory(cast):
    function = Mock(side_effect=lambda: example(cast))
    graph = graph_of(function)
    assert content(graph) == content(imported(user_model(example(cast))))
    assert function.call_count == 1


@pytest.mark.parametrize("precision", [None, "mixed"])
def test_a_module_on_meta_is_the_one_on_the_cpu(precision):
    def on_meta():
        with torch.device("meta"):
            return example(lambda module: module)

    graphs = [graph_of(make, precision=precision) for make in (on_meta, lambda: example(lambda module: module))]
    assert content(graphs[0]) == content(graphs[1])


def test_a_tied_parameter_stays_tied_through_a_cast():
    def make():
        module, words = example(lambda module: module.half())
        assert module.head.weight is module.table.weight
        assert isinstance(module.head.weight, FakeTensor)
        assert module.head.weight.dtype is torch.half
        return module, words

    assert [name for name in graph_of(make).updates if "head" in name] == []


LAZY = """
def make(batch=8):
    import torch
    module = torch.nn.Linear(16, 16)
    return module, (torch.ones(batch, 16),), torch.nn.functional.mse_loss, torch.ones(batch, 16)

def graph(batch=8):
    import planner
    return planner.model("mlp-2-16", batch=batch)
"""


def test_a_function_may_load_pytorch_itself(tmp_path):
    """In a process that has not loaded it, with options of modules."""
    (tmp_path / "lazy.py").write_text(LAZY)
    code = f"""
import sys, planner
assert "torch" not in sys.modules
plain = planner.model("{tmp_path}/lazy.py:graph")
assert "torch" not in sys.modules
graph = planner.model("{tmp_path}/lazy.py:make", dtype="mixed", optimizer="adamw", micro_batches=2)
assert graph.micro_batches == 2
assert "bfloat16" in {{tensor.dtype for tensor in graph.tensors.values()}}
assert "adamw" in {{node.op for node in graph.nodes}}
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_buffer_without_content_is_refused_in_one_line():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("factor", torch.arange(4.0), persistent=False)

        def forward(self, x):
            return (self.linear(x) * self.factor[None].expand(2, -1).cos()).square().mean()

    with torch.device("meta"):
        module, x = Scaled(), torch.zeros(2, 4)
    with pytest.raises(GraphError, match=r"a buffer of the module is on .* has no content|its content is unknown"):
        from_torch(module, (x,))
