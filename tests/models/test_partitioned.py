"""Every zoo model cut at random trains as one worker does, and moves the bytes that were planned."""

import random
from functools import cache

import numpy as np
import pytest

import planner
from planner.models import build
from planner.plans.check import check_plan
from planner.plans.plan import single_worker
from planner.search import SearchOptions, search
from tests.cross.loopback import trained
from tests.cross.masks import Recount
from tests.cross.random_plans import random_plan
from tests.models.tiny import tiny

MODELS = {
    "alexnet": {"image": 63, "width": 1 / 32, "classes": 6},
    "vgg-16": {"image": 32, "width": 1 / 32, "classes": 6},
    "classifier-9": {"image": 8, "channels": 1, "backbone": "wresnet-14-0.0625", "embedding": 6},
    "transformer-1-12": {"sequence": 6, "vocabulary": 11, "heads": 3},
    "encoder-decoder-1-8": {"sequence": 3, "source_sequence": 5, "vocabulary": 9, "heads": 2, "qkv_bias": False},
}
LANGUAGE = ("gpt", "bloom", "llama", "mixtral")
# With Adam biases of keys would differ; see ModelOptions.
OPTIMIZERS = dict.fromkeys(("transformer-1-12", "gpt", "bloom"), "momentum")
TOLERANCE = 1e-10


@cache
def graph(name):
    optimizer = OPTIMIZERS.get(name, "adam")
    if name in LANGUAGE:
        return tiny(name, optimizer=optimizer, lr=0.001)
    return build(name, batch=4, **MODELS[name], dtype="float64", optimizer=optimizer, lr=0.001)


@cache
def one_worker(name):
    return trained(single_worker(nobodys_plan(name, (2,))))[0]


def nobodys_plan(name, ways):
    return random_plan(graph(name), ways, random.Random(f"{name}{ways}"))


def differences(weights, expected):
    """Largest difference of each tensor relative to its largest value."""
    return {
        name: np.abs(weights[name] - values).max() / max(np.abs(values).max(), 1e-300)
        for name, values in expected.items()
    }


def check_run(name, plan):
    check_plan(plan)
    weights, run = trained(plan)
    np.testing.assert_array_equal(plan.bytes, run.program.bytes)
    np.testing.assert_array_equal(plan.bytes * 2, run.moved)
    off = {tensor: value for tensor, value in differences(weights, one_worker(name)).items() if not value <= TOLERANCE}
    assert off == {}


@pytest.mark.parametrize(
    ("name", "ways"), [*((name, (2, 2)) for name in (*MODELS, *LANGUAGE)), ("alexnet", (3,)), ("mixtral", (3,))]
)
def test_random_plans(name, ways):
    plan = nobodys_plan(name, ways)
    np.testing.assert_array_equal(plan.bytes, Recount(plan).count())
    check_run(name, plan)


@pytest.mark.parametrize("name", ["classifier-9", "encoder-decoder-1-8", *LANGUAGE])
def test_searched_plans(name):
    plan = search(graph(name), SearchOptions(ways=(2, 2), searcher="recursive", placements="S,R"))
    np.testing.assert_array_equal(plan.bytes, Recount(plan).count())
    check_run(name, plan)


@pytest.mark.parametrize("spec", ["dp=4,ep=2", "dp=2,ep=2,tp=2,sp", "dp=2,ep=2,cp=2"])
def test_experts_that_data_parallel_workers_share_out(spec):
    check_run("mixtral", planner.plan(graph("mixtral"), parallel=spec))
