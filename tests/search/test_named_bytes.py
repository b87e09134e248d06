"""Bytes of named parallelism, of every pair of workers: what Megatron-LM, DeepSpeed and FSDP2 move, in closed form."""

import random
from dataclasses import dataclass
from itertools import permutations, product

import numpy as np
import pytest

import planner
from planner.parallel import Parallel
from planner.program.lower import lower

ITEM = 4
BATCH, SEQUENCE, WIDTH, VOCABULARY, LAYERS, EXPERTS, HEADS = 16, 16, 64, 64, 4, 4, 4
SIZES = {"batch": BATCH, "sequence": SEQUENCE, "vocabulary": VOCABULARY, "heads": HEADS, "tied": False}
MODELS = {
    "gpt": (f"transformer-{LAYERS}-{WIDTH}", {"flash": True}),
    "llama": (f"llama-{LAYERS}-{WIDTH}", {"hidden": 128}),
    "mixtral": (f"llama-{LAYERS}-{WIDTH}", {"hidden": 128, "experts": EXPERTS, "capacity": 1.0}),
}
AXES = ("pp", "dp", "ep", "cp", "tp")


@dataclass(frozen=True)
class Weight:
    """Elements of a parameter; if tensor parallel workers, or experts, have parts.

    A vector that tensor parallel workers split has no other dimension that others could share out.
    """

    name: str
    elements: int
    split: bool = False
    expert: bool = False
    is_vector: bool = False


def layer_weights(model, layer):
    """Yield the parameters of a layer's two parts, of attention and of what follows."""
    square, wide = WIDTH * WIDTH, WIDTH * (4 * WIDTH if model == "gpt" else 128)
    at, mlp = f"l{layer}.attention", f"l{layer}.{'experts' if model == 'mixtral' else 'mlp'}"
    if model == "gpt":
        yield [
            *norm(f"{at}.norm", True),
            Weight(f"{at}.qkv.w", 3 * square, split=True),
            Weight(f"{at}.qkv.b", 3 * WIDTH, split=True),
            Weight(f"{at}.out.w", square, split=True),
            Weight(f"{at}.out.b", WIDTH),
        ]
        yield [
            *norm(f"{mlp}.norm", True),
            Weight(f"{mlp}.up.w", wide, split=True),
            Weight(f"{mlp}.up.b", 4 * WIDTH, split=True, is_vector=True),
            Weight(f"{mlp}.down.w", wide, split=True),
            Weight(f"{mlp}.down.b", WIDTH),
        ]
        return
    products = (Weight(f"{at}.{part}.w", square, split=True) for part in ("q", "k", "v", "out"))
    yield [*norm(f"{at}.norm", False), *products]
    experts = model == "mixtral"
    router = [Weight(f"{mlp}.router.w", WIDTH * EXPERTS)] if experts else []
    times = EXPERTS if experts else 1
    parts = (Weight(f"{mlp}.{part}.w", times * wide, split=True, expert=experts) for part in ("gate", "up", "down"))
    yield [*norm(f"{mlp}.norm", False), *router, *parts]


def norm(name, bias):
    return [Weight(f"{name}.w", WIDTH), *([Weight(f"{name}.b", WIDTH)] if bias else [])]


class Closed:
    """Adds up a matrix of bytes [from, to], collective by collective."""

    def __init__(self, model, spec, micro_batches, stage_of):
        self.model, self.spec, self.micro_batches, self.stage_of = model, spec, micro_batches, stage_of
        degrees = {axis: getattr(spec, axis) for axis in AXES} | {"dp": spec.dp // spec.ep}
        self.degrees = degrees
        self.workers = [dict(zip(AXES, digits, strict=True)) for digits in product(*map(range, degrees.values()))]
        self.bytes = np.zeros((len(self.workers),) * 2)
        self.rows = BATCH // spec.dp * (SEQUENCE // spec.cp) * ITEM
        self.activation = self.rows * WIDTH

    def pairs(self, axes, stage):
        """Pairs of workers of a stage that differ along these axes alone."""
        for (a, source), (b, target) in permutations(enumerate(self.workers), 2):
            if source["pp"] == stage and all(source[axis] == target[axis] for axis in AXES if axis not in axes):
                yield a, b

    def move(self, axes, nbytes, stage, times=1):
        """A group gathers or reduces so many bytes: every pair of it moves one part of as many as it has members."""
        members = np.prod([self.degrees[axis] for axis in axes], dtype=int)
        for pair in self.pairs(axes, stage):
            self.bytes[pair] += nbytes * times / members

    def add_up(self, axes, nbytes, stage):
        """The first of a group adds up what cannot be shared out, and sends it back."""
        first = [min([a, *(b for c, b in self.pairs(axes, stage) if c == a)]) for a in range(len(self.workers))]
        for a, b in self.pairs(axes, stage):
            self.bytes[a, b] += nbytes * ((first[a] == a) + (first[b] == b))

    def total(self):
        layers = [list(layer_weights(self.model, layer)) for layer in range(LAYERS)]
        for attention, rest in layers:
            self.attention(self.stage_of(attention[-1].name))
            self.rest_of_layer(self.stage_of(rest[-1].name))
        self.ends()
        self.between_stages()
        ends = [Weight("embedding.w", VOCABULARY * WIDTH, split=True)]
        ends += [*norm("norm", self.model == "gpt"), Weight("logits.w", VOCABULARY * WIDTH, split=True)]
        for weight in (*ends, *(weight for parts in layers for part in parts for weight in part)):
            self.weight(weight, self.stage_of(weight.name))
        if self.model == "gpt":
            self.positions(Weight("embedding.positions.w", SEQUENCE * WIDTH))
        return self.bytes

    def layer_part(self, stage):
        """Two all-reduces, or with the sequence split two gathers and two scatters, and a gather again."""
        if self.spec.tp > 1:
            self.move(["tp"], self.activation, stage, 5 if self.spec.sp else 4)

    def attention(self, stage):
        """Keys and values are gathered in either pass, their gradients scattered."""
        self.layer_part(stage)
        self.move(["cp"], self.activation * self.spec.cp / self.spec.tp, stage, 6)

    def rest_of_layer(self, stage):
        """Tokens go to experts and back in either pass; tensor parallel workers have parts, and gather them there."""
        if self.model != "mixtral":
            return self.layer_part(stage)
        tokens = BATCH // self.spec.dp * 2 * SEQUENCE * WIDTH * ITEM
        if self.spec.tp == 1:
            self.move(["ep", "cp"], tokens, stage, 4)
            return self.move(["cp"], tokens // WIDTH, stage)
        if self.spec.ep == 1:
            return self.move(["tp"], tokens, stage, 4)
        self.move(["ep"], tokens / self.spec.tp, stage, 2)
        self.move(["tp"], tokens, stage, 5)
        return self.move(["ep", "tp"], tokens, stage, 2)

    def ends(self):
        """Of the embedding's result a sum, of the logits' operand a gradient.

        Of the loss: two numbers of every token where the vocabulary is split, and one number of every worker.
        """
        first, last = self.stage_of("embedding.w"), self.stage_of("logits.w")
        self.move(["tp"], self.activation, first, 2)
        self.move(["tp"], self.activation, last, 3 if self.spec.sp else 2)
        self.move(["tp"], self.rows, last, 4)
        self.add_up(["dp", "ep", "cp", "tp"], ITEM, last)

    def between_stages(self):
        """An activation forward and its gradient back over every border, from a worker to the one in its place."""
        part = self.activation / (self.spec.tp if self.spec.sp else 1)
        for (a, source), (b, target) in permutations(enumerate(self.workers), 2):
            if abs(source["pp"] - target["pp"]) == 1 and {**source, "pp": target["pp"]} == target:
                self.bytes[a, b] += part

    def weight(self, weight, stage):
        """DDP's all-reduce; ZeRO's scatter of a gradient, of each micro-batch's from stage 2 on, and gathers."""
        spec = self.spec
        nbytes = weight.elements * ITEM / (spec.tp if weight.split else 1) / (spec.ep if weight.expert else 1)
        replicas = ["dp", "cp"] if weight.expert else ["dp", "ep", "cp"]
        beside = ["tp"] if spec.sp and not weight.split else []
        if weight.is_vector and spec.tp > 1:
            self.add_up(replicas, nbytes, stage)
        elif not spec.zero:
            self.move([*replicas, *beside], nbytes, stage, 2)
        else:
            often = self.micro_batches if spec.zero > 1 else 1
            shared = np.prod([self.degrees[axis] for axis in replicas])
            self.move([*replicas, *beside], nbytes, stage, often)
            self.move(beside, nbytes / shared, stage, often)
            self.move(replicas, nbytes, stage, 2 * self.micro_batches if spec.zero == 3 else 1)

    def positions(self, weight):
        """Rows are gathered of those who have them; without such a weight is like others."""
        spec, stage, nbytes = self.spec, self.stage_of(weight.name), weight.elements * ITEM
        if spec.cp == 1 and not spec.sp:
            return self.weight(weight, stage)
        beside = ["tp"] if spec.sp else []
        self.move(["dp"], nbytes / spec.cp / (spec.tp if spec.sp else 1), stage)
        self.move(["dp", *beside], nbytes / spec.cp, stage)
        return self.move(["cp"], nbytes, stage)


def is_closed(model, spec, micro_batches):
    """True for what has a closed form here: equal parts, positions or tokens of experts that few axes cut."""
    if spec.workers == 1 or spec.workers > 16 or spec.dp * micro_batches > BATCH or SEQUENCE % (spec.cp * spec.tp):
        return False
    if model == "gpt":
        return not spec.zero or (spec.cp == 1 and not spec.sp)
    return model != "mixtral" or not (spec.sp or (spec.cp > 1 and spec.tp > 1))


def drawn(seed):
    """Draw a model, degrees, and how many micro-batches."""
    draw = random.Random(seed)
    while True:
        model = draw.choice(("gpt", "llama", "mixtral", "module"))
        dp, cp, tp, pp = (draw.choice((1, 1, 2, 4)) for _ in range(4))
        sp, zero = tp > 1 and draw.random() < 0.5, draw.randrange(4) if dp * cp > 1 else 0
        ep = draw.choice([ep for ep in (1, 2, 4) if dp % ep == 0]) if model == "mixtral" else 1
        spec, micro_batches = Parallel(pp=pp, dp=dp, ep=ep, cp=cp, tp=tp, sp=sp, zero=zero), draw.choice((1, 2, 4))
        if is_closed(model, spec, micro_batches):
            return model, spec, micro_batches


MODULE = """
import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm = heads, nn.RMSNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x):
        y = self.norm(x)
        q, k, v = (part(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).flatten(2))


class Gated(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.norm, self.down = nn.RMSNorm(width), nn.Linear(hidden, width, bias=False)
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))

    def forward(self, x):
        y = self.norm(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    def __init__(self, layers, width, heads, hidden, vocabulary, prefix):
        super().__init__()
        self.embedding, self.norm = nn.Embedding(vocabulary, width), nn.RMSNorm(width)
        self.logits = nn.Linear(width, vocabulary, bias=False)
        self.prefix, self.layers = prefix, layers
        for layer in range(layers):
            parts = {"attention": Attention(width, heads), "mlp": Gated(width, hidden)}
            self.add_module(f"{prefix}{layer}", nn.ModuleDict(parts))

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in range(self.layers):
            parts = getattr(self, f"{self.prefix}{layer}")
            x = parts["mlp"](parts["attention"](x))
        return self.logits(self.norm(x))


def make(batch, sequence, vocabulary, layers, width, heads, hidden, prefix="l"):
    tokens = torch.zeros(batch, sequence, dtype=torch.long)
    module = Model(layers, width, heads, hidden, vocabulary, prefix)
    return module, tokens, lambda y, t: functional.cross_entropy(y.flatten(0, 1), t.flatten()), tokens.clone()
"""


@pytest.fixture
def build(tmp_path):
    """Builds a model's graph of so many micro-batches."""

    def graph_of(model, micro_batches, **options):
        if model != "module":
            name, chosen = MODELS[model]
            return planner.model(name, micro_batches=micro_batches, **SIZES, **chosen)
        pytest.importorskip("torch")
        (tmp_path / "module.py").write_text(MODULE)
        sizes = {"batch": BATCH, "sequence": SEQUENCE, "vocabulary": VOCABULARY, "heads": HEADS, "hidden": 128}
        sizes |= {"layers": LAYERS, "width": WIDTH} | options
        return planner.model(f"{tmp_path / 'module.py'}:make", micro_batches=micro_batches, **sizes)

    return graph_of


def stages_in(plan, suffix):
    """Return which stage has a parameter."""
    staged = plan.ways.axes[:1] == ("pp",)
    return lambda name: int(str(plan.layouts[name.replace(".w", suffix)][0])[1:]) if staged else 0


@pytest.mark.parametrize("seed", range(40))
def test_bytes_of_every_pair_are_those_of_the_frameworks(seed, build):
    model, spec, micro_batches = drawn(seed)
    plan = planner.plan(build(model, micro_batches), parallel=spec)
    suffix = ".weight" if model == "module" else ".w"
    expected = Closed("llama" if model == "module" else model, spec, micro_batches, stages_in(plan, suffix)).total()
    np.testing.assert_array_equal(plan.bytes, expected, err_msg=f"{model} {spec} {micro_batches}")
    np.testing.assert_array_equal(plan.bytes, lower(plan).bytes)


@pytest.mark.parametrize("spec", ["dp=2,tp=2,sp,zero=3", "pp=2,cp=2,tp=2"])
def test_names_of_modules_change_no_byte(spec, build):
    plans = [planner.plan(build("module", 2, prefix=prefix), parallel=spec) for prefix in ("l", "z_attention")]
    np.testing.assert_array_equal(*(plan.bytes for plan in plans))
