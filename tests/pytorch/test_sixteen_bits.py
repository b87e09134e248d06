"""Modules in 16 bits, and autocast, train as they do in PyTorch, but for rounding to 16 bits."""

import copy
from statistics import median

import pytest

pytest.importorskip("torch")
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import planner
import simulator
from executor.check import relative_difference
from planner.errors import GraphError
from planner.graph import Optimizer
from planner.model_source import model_and_options
from planner.models.zoo import defaults
from planner.pytorch import from_torch
from tensor_partitioner.replicas import computed_dtype
from tests.pytorch.eager import RATE, eager_steps, imported_steps
from topologies import load_topology

ROUNDING = 2.0**-7  # of one operation in bfloat16, 2 ** -9, and of some behind each other
DRAWS = 5


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.norm, self.last = nn.Embedding(32, 16), nn.LayerNorm(16), nn.LayerNorm(16)
        self.qkv, self.out, self.up = (nn.Linear(16, n) for n in (48, 16, 64))
        self.down = nn.Linear(64, 16)
        self.head = nn.Linear(16, 32, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens)
        heads = [part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1)]
        x = x + self.out(F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))
        return self.head(x + self.down(F.gelu(self.up(self.last(x))))).flatten(0, 1)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells, self.out = nn.LSTM(6, 8, batch_first=True), nn.Linear(8, 5)

    def forward(self, x):
        return self.out(self.cells(x)[0][:, -1])


class Scaled(nn.Module):
    """With regions within regions: no gradient through the scale, and the last product in single precision."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x):
        hidden = torch.einsum("ij,kj->ik", x, self.a.weight)
        with torch.no_grad():
            scale = torch.tanh(self.a(x)).mean()
        with torch.autocast("cpu", enabled=False):
            return self.b(hidden.to(self.b.weight.dtype)) * scale


class Autocast(nn.Module):
    def __init__(self, module, dtype=torch.bfloat16):
        super().__init__()
        self.module, self.dtype = module, dtype

    def forward(self, *inputs):
        with torch.autocast("cpu", dtype=self.dtype):
            return self.module(*inputs)


def images():
    layers = (
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, groups=8),
    )
    return nn.Sequential(*layers, nn.GroupNorm(2, 8), nn.SiLU(), nn.Flatten(), nn.Linear(72, 5))


MODELS = {
    "gpt": (GPT, lambda: torch.randint(32, (2, 6)), lambda: torch.randint(32, (12,))),
    "images": (images, lambda: torch.randn(4, 3, 10, 10), lambda: torch.randint(5, (4,))),
    "recurrent": (Recurrent, lambda: torch.randn(4, 5, 6), lambda: torch.randint(5, (4,))),
    "regions": (Scaled, lambda: torch.randn(4, 6), lambda: torch.randint(5, (4,))),
}


def case(name, seed=0):
    torch.manual_seed(seed)
    module, inputs, targets = (make() for make in MODELS[name])
    return module, inputs, targets


def in_brain_floats(name, seed=0):
    module, inputs, targets = case(name, seed)
    return module.bfloat16(), inputs.bfloat16() if inputs.is_floating_point() else inputs, targets


def in_autocast(name, seed=0):
    module, *batch = case(name, seed)
    return Autocast(module), *batch


def in_single(result, targets):
    return F.cross_entropy(result.float(), targets)


def of_products(graph):
    """The dtypes that products have."""
    products = [node for node in graph.nodes if node.op in ("mm", "bmm", "einsum", "convolution")]
    return {graph.tensors[name].dtype for node in products for name in node.inputs}


def gaps(graph, module, inputs, targets):
    """Return, for all that is kept, how far we and PyTorch are from what double precision gives."""
    ours, state = imported_steps(graph, module, (inputs,), (targets,))
    theirs, torchs = eager_steps(module, (inputs,), in_single, (targets,))
    in_double = copy.deepcopy(module).double()
    wide = inputs.double() if inputs.is_floating_point() else inputs
    _, exact = eager_steps(in_double, (wide,), in_single, (targets,))
    assert ours == pytest.approx(theirs, rel=ROUNDING)
    return {
        name: [relative_difference(values[name].reshape(exact[name].shape), exact[name]) for values in (state, torchs)]
        for name in state.keys() & torchs.keys()
    }


def agrees(drawn, name):
    """We are as near as PyTorch to double precision, by the median of draws; return a graph."""
    module, inputs, targets = drawn(name)
    graph = from_torch(module, (inputs,), loss=in_single, targets=(targets,), optimizer=Optimizer("sgd", lr=RATE))
    drawn_gaps = [gaps(graph, *drawn(name, seed)) for seed in range(DRAWS)]
    for kept in drawn_gaps[0]:
        ours, theirs = (median(gap[kept][who] for gap in drawn_gaps) for who in range(2))
        assert ours < 2 * theirs + ROUNDING / 16, kept
    plan = planner.plan(graph, workers=2)
    assert sum(map(sum, simulator.simulate(plan, "hgx-h100").bytes)) == plan.total_bytes
    return graph


@pytest.mark.parametrize("name", ["gpt", "recurrent"])
def test_a_module_in_16_bits(name):
    graph = agrees(in_brain_floats, name)
    assert {tensor.dtype for tensor in graph.tensors.values() if tensor.role == "weight"} == {"bfloat16"}


@pytest.mark.parametrize("name", ["images", "regions"])
def test_autocast(name):
    graph = agrees(in_autocast, name)
    assert {tensor.dtype for tensor in graph.tensors.values() if tensor.role == "weight"} == {"float32"}
    assert of_products(graph) == ({"bfloat16", "float32"} if name == "regions" else {"bfloat16"})


def test_no_gradient_flows_where_none_does_in_a_region():
    """The scale of its result is the one that has none."""
    module, inputs, targets = case("regions")
    graph = from_torch(Autocast(module), (inputs,), loss=in_single, targets=(targets,))
    assert "module.a.bias" not in graph.updates
    assert "module.a.weight" in graph.updates


def test_an_operator_that_casts_within_and_is_not_taken_apart():
    module, inputs, targets = case("recurrent")
    with pytest.raises(
        GraphError, match=r"test_sixteen_bits\.py:\d+: autocast .* through aten\.lstm\.input: cast explicitly"
    ):
        from_torch(Autocast(module), (inputs,), loss=in_single, targets=(targets,))


MODULES = """
import torch
from torch import nn

import planner

def make(batch=8):
    module = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 8))
    return module, torch.zeros(batch, 8), nn.functional.mse_loss, torch.zeros(batch, 8)

def with_one(batch=8):
    module, *rest = make(batch)
    return module, *rest, torch.optim.SGD(module.parameters(), lr=0.1)

def in_half(batch=8):
    module, *rest = make(batch)
    return module.bfloat16(), *rest

def asked(dtype="float32"):
    assert dtype == "mixed"
    return make()

def doubled():
    module, *rest = make()
    return module.double(), *rest

def graph():
    return planner.model("mlp-2-16", batch=8)
"""


@pytest.fixture
def modules(tmp_path):
    """The name of the file."""
    (tmp_path / "modules.py").write_text(MODULES)
    return tmp_path / "modules.py"


def test_mixed_precision_of_a_module_that_is_not_asked_for_it(modules):
    """It runs within autocast, and so does its loss; where a function takes the dtype it does as it will."""
    make = f"{modules}:make"
    for precision, dtype in (("mixed", "bfloat16"), ("mixed-float16", "float16")):
        graph = planner.model(make, dtype=precision, batch=8)
        assert of_products(graph) == {dtype}
        assert {tensor.dtype for tensor in graph.tensors.values() if tensor.role == "weight"} == {"float32"}
    assert of_products(planner.model(f"{modules}:asked", dtype="mixed")) == {"float32"}
    assert of_products(planner.model(make)) == of_products(planner.model(make, dtype="float32")) == {"float32"}
    with pytest.raises(GraphError, match=r"precision float32 needs float32 parameters, found torch.float64"):
        planner.model(f"{modules}:doubled", dtype="float32")


def test_what_autocast_does_not_give_is_refused_with_what_to_write(modules):
    told = r"as in def make\(dtype='bfloat16'\); PyTorch modules need none: --dtype mixed"
    with pytest.raises(GraphError, match=told):
        planner.model(f"{modules}:make", dtype="bfloat16")
    with pytest.raises(
        GraphError, match=r"expected a function with parameters for --dtype, as in def graph\(dtype='mixed'\)"
    ):
        planner.model(f"{modules}:graph", dtype="mixed")


@pytest.mark.parametrize(
    ("function", "given", "optimizer", "dtype"),
    [
        ("make", {}, "adamw", "mixed"),
        ("make", {"dtype": "float32"}, "adamw", "float32"),
        ("in_half", {}, "adamw", None),
        ("with_one", {"dtype": "mixed"}, None, "mixed"),
    ],
)
def test_a_module_without_an_optimizer_is_decided_as_one_of_the_zoo(modules, function, given, optimizer, dtype):
    source = f"{modules}:{function}"
    graph, options = model_and_options(source, defaults(load_topology("hgx-h100"), given), **given)
    assert (options.get("optimizer"), options.get("dtype")) == (optimizer, dtype)
    assert planner.model(source, **options) == graph
    updated = {node.op for node in graph.nodes if not {*node.outputs}.isdisjoint(graph.updates.values())}
    assert updated - {"increment"} == {optimizer or "sgd"}


def test_an_optimizer_is_asked_for_where_there_is_none(modules):
    with pytest.raises(GraphError, match="the model has its own optimizer"):
        planner.model(f"{modules}:with_one", optimizer="adamw")
    with pytest.raises(GraphError, match="option optimizer must be one of"):
        planner.model(f"{modules}:make", optimizer="lion")


def test_a_model_computes_in_what_its_products_are_in():
    """However many element-wise results are in single precision beside them."""

    class Few(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x):
            for _ in range(9):
                x = x.exp().float().log()
            return self.fc(x).float().square().mean()

    graph = from_torch(Few(), (torch.rand(4, 8),), autocast=torch.bfloat16)
    assert computed_dtype(graph) == "bfloat16"
    assert computed_dtype(from_torch(Few(), (torch.rand(4, 8),))) == "float32"
