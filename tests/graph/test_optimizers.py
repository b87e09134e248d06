"""Optimizers: which tensors they add, and three steps of each against PyTorch's."""

import numpy as np
import pytest

from planner.errors import GraphError
from planner.graph import GraphBuilder, Init, Optimizer, training_graph
from planner.graph.optimizers import OPTIMIZERS
from tests.graph import one_worker

STATES = {
    "none": [],
    "sgd": [],
    "momentum": ["w.velocity"],
    "adam": ["step", "w.m", "w.v"],
    "adamw": ["step", "w.m", "w.v"],
    "rmsprop": ["w.v"],
    "adagrad": ["w.total"],
}


def regression(optimizer):
    """Mean of (x w)^3, whose gradient changes from step to step."""
    b = GraphBuilder("float64")
    x, w = b.input("x", (5, 3)), b.weight("w", (3, 4), Init("uniform", 1.0))
    y = b.apply("mm", x, w, name="y")
    cube = b.apply("mul", b.apply("mul", y, y, name="square"), y, name="cube")
    loss = b.apply("mean", cube, name="loss", dims=(0, 1), count=20)
    return training_graph(b, {"loss": loss}, optimizer)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_states_and_updates(name):
    graph = regression(Optimizer(name))
    states = [tensor.name for tensor in graph.tensors.values() if tensor.role == "state" and tensor.init is not None]
    assert states == STATES[name]
    changed = [] if name == "none" else ["w", *states]
    assert dict(graph.updates) == {tensor: f"{tensor}.next" for tensor in graph.updates}
    assert sorted(graph.updates) == sorted(changed)


def test_an_unknown_optimizer_is_named():
    with pytest.raises(GraphError, match=r"unknown optimizer 'lion', expected one of momentum, sgd, adam, .*, none"):
        regression(Optimizer("lion"))


PYTORCH = {
    "sgd": ("SGD", {}),
    "momentum": ("SGD", {"momentum": 0.8}),
    "adam": ("Adam", {"betas": (0.7, 0.95), "eps": 1e-6}),
    "adamw": ("AdamW", {"betas": (0.7, 0.95), "eps": 1e-6, "weight_decay": 0.3}),
    "rmsprop": ("RMSprop", {"alpha": 0.9, "eps": 1e-6}),
    "adagrad": ("Adagrad", {"eps": 1e-6}),
}


def test_every_optimizer_is_compared():
    assert set(PYTORCH) == set(OPTIMIZERS) - {"none"}


@pytest.mark.parametrize("name", PYTORCH)
def test_three_steps_equal_pytorch(name):
    torch = pytest.importorskip("torch")
    constants = {"momentum": 0.8, "beta1": 0.7, "beta2": 0.95, "eps": 1e-6, "alpha": 0.9, "decay": 0.3}
    graph = regression(Optimizer(name, lr=0.05, **constants))
    values = one_worker.draw(graph)
    w = torch.tensor(values["w"], requires_grad=True)
    theirs, settings = PYTORCH[name]
    optimizer = getattr(torch.optim, theirs)([w], lr=0.05, **settings)
    for _ in range(3):
        results = one_worker.run(graph, values)
        values |= {old: results[new] for old, new in graph.updates.items()}
        optimizer.zero_grad()
        ((torch.tensor(values["x"]) @ w) ** 3).mean().backward()
        optimizer.step()
        assert one_worker.difference(values["w"], w.detach().numpy()) < 1e-10
        assert np.all(np.isfinite(values["w"]))
