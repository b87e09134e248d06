"""Projected memory of imported modules beside their parameters, and beside what PyTorch itself saves for backward."""

from contextlib import contextmanager

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

from planner.parallel import Parallel  # noqa: E402
from planner.pytorch import from_torch  # noqa: E402
from simulator.projection.network import cluster  # noqa: E402
from tensor_partitioner.projection import project_source  # noqa: E402
from tensor_partitioner.replicas import GraphModel  # noqa: E402

SAMPLES, TOKENS, WIDTH, HEADS, WORDS, LAYERS = 4, 32, 64, 4, 128, 4


class Attention(nn.Module):
    """Causal attention by a function of heads [b, h, t, c], of queries, keys and values from one product."""

    def __init__(self, function):
        super().__init__()
        self.function, self.qkv, self.out = function, nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        heads = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).split(WIDTH, dim=2))
        return self.out(self.function(*heads).transpose(1, 2).contiguous().flatten(2))


def at_once(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def step_by_step(q, k, v):
    hidden = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
    scores = (q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5).masked_fill(hidden, float("-inf"))
    return F.dropout(scores.softmax(-1), 0.1) @ v


def turned(q, k, v):
    """Queries and keys are rotated, for which they are not saved: values keep what all three are parts of."""
    angles = torch.linspace(0, 1, TOKENS * q.shape[-1]).view(TOKENS, -1)

    def turn(x):
        first, second = x.chunk(2, -1)
        return x * angles.cos() + torch.cat([-second, first], -1) * angles.sin()

    return at_once(turn(q), turn(k), v)


class Gated(nn.Module):
    """Half of a product's result gates the other."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 8 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        gate, value = self.up(x).chunk(2, -1)
        return self.down(F.gelu(gate) * value)


class Squared(nn.Module):
    """The mean square of what layers make."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x).square().mean()


class Layer(nn.Module):
    """Attention and a perceptron, of norms of what they are added to."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.attention = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), Attention(at_once)
        self.up, self.down, self.drop = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1)

    def forward(self, x):
        x = x + self.attention(self.first(x))
        return x + self.drop(self.down(F.gelu(self.up(self.second(x)))))


class GPT(nn.Module):
    """A language model whose positions are learned and whose head is its embedding; returns the loss."""

    def __init__(self):
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.h = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens):
        x = self.words(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for layer in self.h:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), tokens.flatten())


class Autocast(nn.Module):
    """Layers in 16 bits."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.module(x)


def memory(module, given, parallel="", stack="eager"):
    """Return the projected lines of memory of a module at work on its batch, on every worker."""
    source = GraphModel(from_torch(module, (given,)))
    way = Parallel.read(f"{parallel},micro-batch={len(given)}".strip(","))
    step = project_source(source, len(given) * way.dp, way, cluster("dgx-a100"), stack)
    return {line.what: line.nbytes for line in step.memory}


def tokens():
    return torch.randint(0, WORDS, (SAMPLES, TOKENS))


def rows():
    return torch.randn(SAMPLES, TOKENS, WIDTH)


def images():
    return torch.randn(SAMPLES, 8, 16, 16)


def parameter_bytes(module):
    return sum(parameter.nbytes for parameter in module.parameters())


@pytest.mark.parametrize("zero", [1, 3])
def test_weights_are_a_modules_own_parameters(zero):
    """Positions' embedding depends on weights alone, too, but is no copy of them."""
    module = GPT()
    lines = memory(module, tokens(), f"dp=8,zero={zero}")
    assert lines["weights"] == pytest.approx(parameter_bytes(module) / (8 if zero == 3 else 1), rel=1e-6)
    assert not {"weights in compute precision", "master weights"} & lines.keys()
    if zero == 3:
        assert lines["gathered weights"] == 2 * parameter_bytes(Layer())


def test_weights_without_a_copy_in_16_bits_are_no_masters():
    """Autocast multiplies with copies; norms and embeddings, of which one is the head, too, are read as they are."""
    module = GPT()
    lines = memory(Autocast(module), tokens(), "dp=8,zero=1")
    multiplied = sum(parameter_bytes(part) for part in module.h.modules() if isinstance(part, nn.Linear))
    read, head = parameter_bytes(module) - multiplied, parameter_bytes(module.head)
    assert lines["master weights"] == pytest.approx(multiplied / 8, rel=1e-6)
    assert lines["weights in compute precision"] == read + (multiplied + head) // 2


CASES = {
    "GELU": lambda: (Squared(nn.Linear(WIDTH, 256), nn.GELU(), nn.Linear(256, WIDTH)), rows()),
    "dropout": lambda: (Squared(nn.Linear(WIDTH, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, WIDTH)), rows()),
    "gated": lambda: (Squared(nn.Linear(WIDTH, WIDTH), Gated()), rows()),
    "attention": lambda: (Squared(Attention(at_once)), rows()),
    "attention that stores its matrix": lambda: (Squared(Attention(step_by_step)), rows()),
    "attention of rotated queries": lambda: (Squared(Attention(turned)), rows()),
    "LayerNorm": lambda: (Squared(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)), rows()),
    "RMSNorm": lambda: (Squared(nn.Linear(WIDTH, WIDTH), nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WIDTH)), rows()),
    "convolution, BatchNorm and ReLU": lambda: (
        Squared(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 1)), images(),
    ),
    "GPT": lambda: (GPT(), tokens()),
}  # fmt: skip


@contextmanager
def masks_of_bytes():
    """Drop as on a GPU, where PyTorch keeps a byte for an element; its CPU keeps a number."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(F, "dropout", lambda x, p=0.5, training=True, inplace=False: torch.native_dropout(x, p, True)[0])
        yield


def saved_bytes(module, given):
    """Return the bytes of all that PyTorch saves for backward but parameters, buffers and inputs, each storage once."""
    apart = {tensor.untyped_storage().data_ptr() for tensor in (*module.parameters(), *module.buffers(), given)}
    saved = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in apart:
            saved[storage.data_ptr()] = storage
        return tensor

    with masks_of_bytes(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        module(given)
    return sum(storage.nbytes() for storage in saved.values())


@pytest.mark.parametrize(("name", "stack"), [*((name, "eager") for name in CASES), ("GPT", "compile")])
def test_activations_are_what_pytorch_saves(name, stack):
    """But for constants, such as masks and tables of angles."""
    module, given = CASES[name]()
    assert memory(module, given, stack=stack)["activations"] == pytest.approx(saved_bytes(module, given), rel=0.05)
