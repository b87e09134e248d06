"""Schedules of learning rates: PyTorch's own, and what is not one."""

import random

import numpy as np
import pytest

from executor.cluster import single_rank
from executor.data import Random
from executor.schedules import CONSTANT, ScheduleError, read_schedule
from executor.training import Trainer, rank_programs
from planner.models import build
from planner.plans.plan import single_worker
from tests.cross.random_plans import random_plan

STEPS = 30


def by_pytorch(text):
    """The factors that PyTorch's schedulers give a rate of 1."""
    torch = pytest.importorskip("torch")
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    of = torch.optim.lr_scheduler

    def rise():
        return of.LinearLR(optimizer, 1 / 5, total_iters=4)

    scheduler = {
        "constant": lambda: of.ConstantLR(optimizer, 1.0),
        "warmup=5": rise,
        "cosine=30:0.1": lambda: of.CosineAnnealingLR(optimizer, 30, 0.1),
        "step=7:0.3": lambda: of.StepLR(optimizer, 7, 0.3),
        "warmup=5,cosine=25": lambda: of.SequentialLR(optimizer, [rise(), of.CosineAnnealingLR(optimizer, 25)], [5]),
        "warmup=5,step=4:.5": lambda: of.SequentialLR(optimizer, [rise(), of.StepLR(optimizer, 4, 0.5)], [5]),
    }[text]()
    factors = []
    for _ in range(STEPS):
        factors.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return factors


@pytest.mark.parametrize(
    "text", ["constant", "warmup=5", "cosine=30:0.1", "step=7:0.3", "warmup=5,cosine=25", "warmup=5,step=4:.5"]
)
def test_schedules_are_pytorchs(text):
    schedule = read_schedule(text)
    # The recursions of PyTorch's warm-up and cosine leave it a few roundings away.
    assert [schedule.at(step) for step in range(STEPS)] == pytest.approx(by_pytorch(text), rel=1e-7, abs=1e-15)


def test_a_cosine_stays_at_its_least():
    assert read_schedule("cosine=10:0.25").at(1000) == 0.25


WRONG = "", "cosine", "cosine=0", "step=3", "step=3:2", "warmup=4,", "warmup=0", "warmup=x", ",cosine=3", "constant=3"


@pytest.mark.parametrize("text", [*WRONG, "cosine=3,warmup=2"])
def test_what_is_no_schedule(text):
    with pytest.raises(ScheduleError, match="expected \\[warmup=STEPS") as caught:
        read_schedule(text)
    assert repr(text) in str(caught.value)


def trainer(optimizer, lr, schedule=CONSTANT):
    plan = single_worker(random_plan(build("mlp-2-8", batch=4, optimizer=optimizer, lr=lr), (2,), random.Random(0)))
    return Trainer(rank_programs(plan, 0), single_rank(1), np, "p2p", schedule)


def run(trained, step):
    trained.load(Random(trained.graph, 0), step)
    trained.run()


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw", "rmsprop", "adagrad"])
def test_every_optimizer_takes_the_rate_that_is_due(optimizer):
    warmed = trainer(optimizer, 0.125, read_schedule("warmup=2"))
    first, second = trainer(optimizer, 0.0625), trainer(optimizer, 0.125)
    run(warmed, 0)
    run(warmed, 1)
    run(first, 0)
    for name in first.graph.updates:
        second.view(name)[...] = first.view(name)
    run(second, 1)
    for name in first.graph.updates:
        np.testing.assert_array_equal(warmed.view(name), second.view(name))
        assert name == "step" or not np.array_equal(first.view(name), second.view(name))
