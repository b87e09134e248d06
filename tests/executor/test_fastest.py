"""Every operator by the library that is faster: chosen by measured seconds, the same on all ranks, as exact."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")
import executor.torch  # noqa: F401 (registers PyTorch's kernels)
import planner
from executor import worker
from executor.cluster import single_rank
from executor.data import Random
from executor.kernels import KERNELS, LIBRARIES
from executor.torch.kernels import TORCH_KERNELS
from executor.training import Trainer, rank_programs
from planner.errors import InputError
from planner.report.schema import read_reports

GRAPH = planner.model("cnn-3-8", batch=4, image=8, channels=3, classes=5)


def trained(library):
    plan = planner.plan(GRAPH, workers=1)
    trainer = Trainer(rank_programs(plan, 0), replace(single_rank(1), library=library), np, "p2p")
    data = Random(plan.graph, plan.seed)
    for step in range(3):
        trainer.load(data, step)
        trainer.run()
    return trainer, {name: trainer.host_copy(name) for name in plan.graph.updates.values()}


def test_an_operator_is_computed_by_what_took_the_least_seconds(monkeypatch):
    seconds = {(op, name): float((op == "mm") == (name == "torch")) for op in TORCH_KERNELS for name in LIBRARIES}
    monkeypatch.setattr(worker, "_seconds", lambda _: seconds)
    trainer, _ = trained("auto")
    assert trainer.kernels.kernels["mm"] is KERNELS["mm"]
    assert trainer.kernels.kernels["convolution"] is TORCH_KERNELS["convolution"]
    apart = next(op for op in trainer.kernels.kernels if op not in TORCH_KERNELS)
    assert trainer.kernels.kernels[apart] is KERNELS[apart]
    assert "convolution" in trainer.kernels.library


def test_what_is_measured_are_operators_of_the_program_that_libraries_compute_apart():
    trainer, _ = trained("arrays")
    seconds = worker._seconds(trainer.worker.memory)
    used = {node.op for node in GRAPH.nodes}
    assert {op for op, _ in seconds} == used & set(TORCH_KERNELS)
    assert all(taken > 0 for taken in seconds.values())


@pytest.mark.parametrize("library", ["torch", "auto"])
def test_libraries_train_alike(library):
    (_, expected), (_, values) = trained("arrays"), trained(library)
    for name, array in expected.items():
        np.testing.assert_allclose(values[name], array, rtol=1e-4, atol=1e-6, err_msg=name)


def test_a_library_that_there_is_not():
    with pytest.raises(InputError, match="kernels 'mkl': expected one of arrays, torch, auto"):
        trained("mkl")


@pytest.mark.mpi
@pytest.mark.parametrize(("library", "said"), [("arrays", "array module"), ("torch", "torch"), ("auto", "")])
def test_the_command(tmp_path, ranks, library, said):
    plan, report = tmp_path / "plan.json", tmp_path / "report.json"
    planner.plan(GRAPH, workers=2).save(plan)
    ranks.succeed(2, "-m", "tensor_partitioner", "execute", plan, "--kernels", library, "--check", "--json", report)
    (job,) = read_reports(report)
    assert job.settings["kernels"].startswith(said)
