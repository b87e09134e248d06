"""Steps launched as CUDA graphs: on the double what was captured is done again by each launch, with other rates."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")
import torch

import executor.torch  # noqa: F401  # enters its kernels
import planner
from executor.cluster import single_rank
from executor.data import Random
from executor.schedules import CONSTANT, read_schedule
from executor.training import Trainer, rank_programs
from planner.errors import InputError
from tests import cupy_double
from tests.cupy_double.torch_streams import OnOneStream, Streams

MODELS = {
    "mlp": ("mlp-2-16", {"batch": 8}),
    "cnn": ("cnn-3-8", {"batch": 4}),
    "transformer": ("transformer-1-32", {"batch": 2, "sequence": 8, "dtype": "mixed"}),
}
TRAINED = [*(("mlp", op) for op in ("sgd", "momentum", "adam", "adamw")), ("cnn", "sgd"), ("transformer", "adamw")]
STEPS, WARM_UP = 6, 2


@pytest.fixture
def cupy(monkeypatch):
    """The double, with a stream of its own, and a PyTorch that computes there."""
    with cupy_double.installed() as double, double.cuda.Stream(null=True):
        single_rank(1).use_device(double)
        with OnOneStream(Streams(monkeypatch.setattr), double):
            yield double


def trainer_of(name, optimizer, xp, library="torch", schedule=CONSTANT):
    model, options = MODELS[name]
    plan = planner.plan(planner.model(model, **options, optimizer=optimizer), workers=1)
    return Trainer(rank_programs(plan, 0), replace(single_rank(1), library=library), xp, "p2p", schedule)


def trained(trainer, captures):
    """Train some steps; return what is then updated, and the losses."""
    losses, graph = [], trainer.graph
    for step in range(STEPS):
        trainer.load(Random(graph, 3), step)
        if captures and step == WARM_UP:
            trainer.worker.capture()
        moments, _ = trainer.run()
        assert len(moments) == len(trainer.worker.program.tasks) + 1
        losses.append(trainer.host_copy(graph.metrics["loss"]))
    return [*losses, *map(trainer.host_copy, graph.updates)]


@pytest.mark.parametrize("schedule", ["constant", "warmup=4,cosine=5"])
@pytest.mark.parametrize(("model", "optimizer"), TRAINED)
def test_launches_train_as_the_tasks_do_whatever_the_rates(cupy, monkeypatch, model, optimizer, schedule):
    graphs = []
    monkeypatch.setattr(
        torch.cuda, "CUDAGraph", lambda graph=torch.cuda.CUDAGraph: graphs.append(graph()) or graphs[-1]
    )
    plain, launched = (trainer_of(model, optimizer, cupy, schedule=read_schedule(schedule)) for _ in range(2))
    expected, actual = trained(plain, captures=False), trained(launched, captures=True)
    assert [graph.launches for graph in graphs] == [STEPS - WARM_UP]
    for tasks, launches in zip(expected, actual, strict=True):
        np.testing.assert_allclose(launches.astype(np.float64), tasks.astype(np.float64), rtol=3e-5, atol=3e-6)


def test_runs_that_look_do_the_tasks(cupy):
    trainer = trainer_of("mlp", "sgd", cupy)
    trained(trainer, captures=True)
    loss = trainer.graph.metrics["loss"]
    trainer.load(Random(trainer.graph, 3), 0)
    before = [trainer.host_copy(name) for name in trainer.graph.updates.values()]
    looked = trainer.run_keeping([loss])[loss]
    for name, value in zip(trainer.graph.updates.values(), before, strict=True):
        trainer.write(name, value)
    trainer.run()
    np.testing.assert_array_equal(trainer.host_copy(loss), looked)


@pytest.mark.parametrize(
    ("optimizer", "library", "reason"),
    [("sgd", "arrays", "expected PyTorch's kernels"), ("adagrad", "torch", "including its optimizers")],
)
def test_what_reads_the_host_is_refused(cupy, optimizer, library, reason):
    with pytest.raises(InputError, match=f"--graphs: .*{reason}.*: use --kernels torch"):
        trainer_of("mlp", optimizer, cupy, library).worker.capture()


def test_a_step_that_waits_is_refused(cupy, monkeypatch):
    trainer = trainer_of("mlp", "sgd", cupy)
    trainer.load(Random(trainer.graph, 3), 0)
    trainer.run()
    trainer.worker._actions.append(lambda: trainer.host_copy(trainer.graph.metrics["loss"]))
    with pytest.raises(InputError, match="--graphs: a step cannot be captured: cudaErrorStreamCaptureUnsupported"):
        trainer.worker.capture()


def test_a_host_captures_nothing():
    with pytest.raises(InputError, match="--graphs: expected a plan of one worker on a GPU"):
        trainer_of("mlp", "sgd", np).worker.capture()
