"""The plans that all parts must agree on: four tiny models, every kind of ways, searcher and placement set."""

from dataclasses import dataclass, replace
from functools import cache

from planner.graph.build import GraphBuilder
from planner.layout import Ways
from planner.models import Training, build
from planner.models.layers import classify, convolution, linear
from planner.plans.plan import Plan
from planner.plans.records import SearchRecord
from planner.search import SearchOptions, search
from tests.cross import cells

MODELS = {name: cells.MODELS[name] for name in ("mlp", "cnn", "wresnet", "rnn")}
WAYS = [Ways(factors) for factors in ((2,), (2, 2), (2, 2, 2), (3,), (3, 2), (4, 2))]
SHARED_WAYS = [
    Ways((2,), (3, 1)),
    Ways((2, 2), (1, 2, 2, 1)),
    Ways((3, 2), (2, 1, 1, 1, 2, 2)),
    Ways((2, 2, 2), (2, 2, 2, 2, 2, 2, 1, 1)),
]
"""Ways of workers of which some have more to do than others."""

SEARCHES = [
    ("recursive", "S"),
    ("recursive", "S,R"),
    ("joint", "S"),
    ("joint", "S,R"),
    ("hybrid", "S,R"),
    ("data-parallel", "S,R"),
]
RATES = {"sgd": 0.01, "adam": 0.001}
TRAININGS = [("float32", "sgd"), ("float64", "sgd"), ("float64", "adam")]


@dataclass(frozen=True)
class Case:
    """One plan to check."""

    model: str
    ways: Ways
    searcher: str
    placements: str
    dtype: str = "float32"
    optimizer: str = "sgd"

    def __post_init__(self):
        if isinstance(self.ways, tuple):
            object.__setattr__(self, "ways", Ways(self.ways))

    @property
    def name(self):
        ways = "x".join(map(str, self.ways)) + "".join(f"-{share}" for share in self.ways.shares)
        placements = self.placements.replace(",", "")
        return f"{self.model}-{ways}-{self.searcher}-{placements}-{self.dtype}-{self.optimizer}"

    def plan(self) -> Plan:
        return planned(self)


def flattened(options):
    """A convolution, max pooling, a reshape that merges three dimensions, and a linear layer: LeNet in small."""
    b = GraphBuilder(options.dtype)
    x = b.input("images", (options.batch, 2, 8, 8))
    x = b.apply("relu", convolution(b, x, "conv", (4, 3, 1)), name="relu")
    pool = {"stride": (2, 2), "padding": (0, 0), "kernel": (2, 2), "extents": {"dy": 2, "dx": 2}}
    x, _ = b.apply_all("max_pool2d_with_indices", x, name="pool", **pool)
    merge = {"source": (("n",), ("c",), ("y",), ("x",)), "target": (("n",), ("c", "y", "x"))}
    flat = b.apply("reshape", x, name="flat", **merge, extents={"c": 4, "y": 4, "x": 4})
    return options.train(b, classify(b, linear(b, flat, 6, "fc")))


@cache
def graph(model, dtype, optimizer):
    if model == "flattened":
        return flattened(Training(batch=4, dtype=dtype, optimizer=optimizer))
    name, options = MODELS[model]
    return build(name, **options, dtype=dtype, optimizer=optimizer, lr=RATES[optimizer])


@cache
def planned(case):
    """Search in single precision; the decisions hold for any dtype of the same graph."""
    if case.dtype != "float32":
        plan = planned(replace(case, dtype="float32"))
        said = SearchRecord(searcher=case.searcher, placements=case.placements)
        return replace(plan, graph=graph(case.model, case.dtype, case.optimizer), search=said)
    options = SearchOptions(ways=case.ways, searcher=case.searcher, placements=case.placements)
    return search(graph(case.model, case.dtype, case.optimizer), options)


def cases(trainings=TRAININGS):
    return [
        Case(model, ways, searcher, placements, dtype, optimizer)
        for model in MODELS
        for ways in WAYS
        for searcher, placements in SEARCHES
        for dtype, optimizer in trainings
    ]


SHARED = [Case(model, ways, "recursive", "S,R") for model in MODELS for ways in SHARED_WAYS]


def distinct(chosen):
    """Give, for every case, the first case with the very same plan: what one run shows holds for all of them."""
    first: dict[object, Case] = {}
    representatives = {}
    for case in chosen:
        plan = case.plan()
        decisions = (frozenset(plan.layouts.items()), frozenset(plan.strategies.items()))
        representatives[case] = first.setdefault((case.model, case.dtype, case.optimizer, plan.ways, decisions), case)
    return representatives
