"""Running statistics of batch norm: PyTorch's, while training and where they are used."""

import numpy as np
import pytest

import planner
from executor.cluster import single_rank
from executor.data import DATA_SETS, data_tensors
from executor.training import Trainer, rank_programs
from executor.values import Tile
from planner.layout.region import whole
from planner.models import build
from planner.plans.plan import single_worker
from planner.search import SearchOptions, search

torch = pytest.importorskip("torch")
functional = torch.nn.functional

STEPS, BATCH = 4, 6
OPTIONS = {"batch": BATCH, "image": 8, "channels": 1, "classes": 10, "lr": 0.1, "dtype": "float64"}


def trained(**options):
    """A network of one convolution after some steps, and the images that it saw."""
    graph = build("cnn-1-5", batch_norm=True, running_statistics=True, **{**OPTIONS, **options})
    plan = single_worker(search(graph, SearchOptions(ways=(2,))))
    trainer = Trainer(rank_programs(plan, 0, evaluate="logits"), single_rank(1), np, "p2p")
    data, images, weights = DATA_SETS["digits"](graph, 0), [], []
    for step in range(STEPS):
        weights.append(np.array(trainer.view("conv1.w")))
        trainer.load(data, step)
        (name,) = (tensor.name for tensor in data_tensors(graph) if tensor.dtype != "int32")
        images.append([np.array(view) for view, _ in trainer.tiles(name)])
        trainer.run()
    return trainer, images, weights


def tensor(values):
    return torch.tensor(np.asarray(values, np.float64))


def by_pytorch(images, weights):
    """What PyTorch's batch norm keeps of the same images under the same weights."""
    mean, variance = torch.zeros(5, dtype=torch.float64), torch.ones(5, dtype=torch.float64)
    for batches, weight in zip(images, weights, strict=True):
        for batch in batches:
            x = functional.conv2d(tensor(batch), tensor(weight), padding=1)
            functional.batch_norm(x, mean, variance, training=True, momentum=0.1)
    return mean, variance


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        ({}, 1e-12),
        ({"micro_batches": 3}, 1e-12),
        ({"recompute": "segments"}, 1e-12),
        ({"dtype": "float32"}, 1e-5),
        ({"dtype": "mixed"}, 2e-2),
    ],
    ids=str,
)
def test_they_are_pytorchs(options, tolerance):
    trainer, images, weights = trained(**options)
    mean, variance = by_pytorch(images, weights)
    np.testing.assert_allclose(trainer.view("bn1.running_mean"), mean, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(trainer.view("bn1.running_var"), variance, rtol=tolerance, atol=tolerance)
    assert not np.allclose(mean, 0, atol=0.01)


@pytest.mark.parametrize(("options", "tolerance"), [({}, 1e-12), ({"dtype": "mixed"}, 5e-2)], ids=str)
def test_evaluation_reads_them(options, tolerance):
    trainer, _, _ = trained(**options)
    held_out = DATA_SETS["digits"](trainer.graph, 0).held_out
    names = ("conv1.w", "bn1.running_mean", "bn1.running_var", "bn1.w", "bn1.b", "fc.w")
    weight, mean, variance, scale, shift, last = (tensor(np.array(trainer.view(name))) for name in names)
    images = np.empty((BATCH, 1, 8, 8), "float64")
    wide = build("cnn-1-5", **OPTIONS).tensors["images"]
    right = 0
    for step in range(held_out.steps_per_epoch):
        held_out.fill(np, images, Tile(wide, whole(wide.shape)), step)
        x = functional.conv2d(tensor(images), weight, padding=1)
        x = functional.relu(functional.batch_norm(x, mean, variance, scale, shift))
        logits = x.mean((2, 3)) @ last
        right += int((logits.argmax(1).numpy() == held_out.samples.labels[step * BATCH : (step + 1) * BATCH]).sum())
    score = trainer.evaluate(held_out)
    assert score.accuracy == pytest.approx(right / held_out.count, abs=tolerance)
    assert 0 < right < held_out.count


def test_every_plan_has_them_without_moving_more():
    graphs = [build("cnn-2-4", batch_norm=True, running_statistics=kept, **OPTIONS) for kept in (False, True)]
    without, kept = (planner.plan(graph, ways=(2, 2)) for graph in graphs)
    assert len(graphs[1].updates) - len(graphs[0].updates) == 2 * 2
    assert kept.total_bytes == without.total_bytes
