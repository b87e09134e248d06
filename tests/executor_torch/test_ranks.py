"""One process as a job of torchrun's, and what is refused."""

import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from mpi4py import MPI

from tests.launcher import exit_status

pytest.importorskip("torch")
import torch
import torch.distributed as dist
from torch import nn

import planner
from executor.backend import BackendError
from executor.data import DataError
from executor.mpi import TRANSPORTS, choose
from executor.process import is_torchrun
from executor.torch import distribute, ranks
from executor.torch.ranks import cluster, job_cluster
from executor.torch.tensors import tensor_of
from executor.torch.transport import others_may_be_lost
from executor.transport import CHOICES, Choice, TransportError
from executor.weights import WeightsError
from planner.failures import JobError
from tests import cupy_double


@pytest.fixture
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield cluster()
    dist.destroy_process_group()


def module_and_batch(rows=8):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    return module, torch.randn(rows, 6, dtype=torch.float64), torch.randint(3, (rows,))


def planned(module, inputs, targets, **options):
    optimizer = planner.Optimizer("sgd", lr=0.1)
    graph = planner.from_torch(
        module, (inputs,), loss=nn.functional.cross_entropy, targets=(targets,), optimizer=optimizer
    )
    return planner.plan(graph, **{"workers": 1, **options})


def test_a_module_trains_like_eager_and_takes_its_weights_back(alone):
    module, inputs, targets = module_and_batch()
    ours = distribute(module, planned(module, inputs, targets))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        expected = nn.functional.cross_entropy(module(inputs), targets)
        expected.backward()
        optimizer.step()
        loss = ours.step(inputs, targets)
        assert loss.dtype == torch.float64
        assert loss.item() == pytest.approx(expected.item(), rel=1e-14)
    other, _, _ = module_and_batch()
    other.load_state_dict(ours.state_dict())
    for weight, same in zip(other.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(weight, same, rtol=1e-14, atol=1e-14)
    for name, dtensor in ours.sharded_state_dict().items():
        assert torch.equal(dtensor.full_tensor(), ours.state_dict()[name])
        before = dtensor.to_local().clone()
        ours.step(inputs, targets)
        assert not torch.equal(dtensor.to_local(), before)  # it is the memory that is trained


@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [
        (torch.zeros(4, 6), torch.zeros(8, dtype=torch.int64), r"expected shape \[8, 6\], found \[4, 6\]"),
        (torch.zeros(6, 8), torch.zeros(8, dtype=torch.int64), r"expected shape \[8, 6\], found \[6, 8\]"),
        (torch.zeros(8, 6), torch.full((8,), -100), r"target: expected numbers from 0 below 3, found -100 to -100"),
        (torch.zeros(8, 6), torch.zeros(8), "target: expected whole numbers, found float32"),
        (torch.zeros(8, 6), (), "expected a tensor target, found input"),
    ],
)
def test_another_batch_than_planned(alone, inputs, targets, message):
    module, *batch = module_and_batch()
    ours = distribute(module, planned(module, *batch))
    with pytest.raises((ValueError, DataError), match=message):
        ours.step(inputs, targets)


def test_rows_that_the_example_leaves_out_are_left_out(alone):
    module, inputs, targets = module_and_batch()
    targets[::3] = -100
    ours = distribute(module, planned(module, inputs, targets))
    targets[1] = -100
    expected = nn.functional.cross_entropy(module(inputs), targets)
    assert ours.step(inputs, targets).item() == pytest.approx(expected.item(), rel=1e-14)
    with pytest.raises(DataError, match="target: expected numbers from 0 below 3, or -100, found -100 to 3"):
        ours.step(inputs, torch.tensor([3, *[-100] * 7]))


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))

    def forward(self, x):
        return (x.view(4, 2, 3) * self.weight).sum()


def test_an_input_that_the_graph_cuts_has_the_modules_shape(alone):
    module, x = Heads(), torch.randn(4, 6)
    ours = distribute(module, planner.plan(planner.from_torch(module, (x,)), workers=1))
    (cut,) = (tensor for tensor in ours.trainer.graph.tensors.values() if tensor.name == "x")
    assert cut.shape == (4, 2, 3)
    assert ours.step(x).item() == pytest.approx(module(x).item(), rel=1e-5)
    with pytest.raises(ValueError, match=r"x: expected shape \[4, 2, 3\], found \[6, 4\]"):
        ours.step(x.T)


def test_another_module_than_planned(alone):
    module, *batch = module_and_batch()
    with pytest.raises(WeightsError, match=r"0\.weight: expected shape \[4, 6\], found \[5, 6\]"):
        distribute(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).double(), planned(module, *batch))


def test_another_number_of_ranks_than_planned(alone):
    module, *batch = module_and_batch()
    with pytest.raises(planner.PlanError, match=r"expected 2 ranks, one per worker, found 1: .* --nproc-per-node 2"):
        distribute(module, planned(module, *batch, workers=2))


def test_without_ranks():
    module, *batch = module_and_batch()
    with pytest.raises(planner.PlanError, match="expected 1 ranks: start them with torchrun --nproc-per-node 1"):
        distribute(module, planned(module, *batch))


def test_the_transport_follows_from_the_memory(alone):
    assert alone.choose_transport("auto", np) == alone.choose_transport("gloo", np) == Choice("gloo")
    for other in sorted({*CHOICES} - {"auto", "gloo"}):
        with pytest.raises(TransportError, match=f"transport '{other}': .* by gloo: use --transport auto"):
            alone.choose_transport(other, np)
    assert {"auto", "gloo", *TRANSPORTS} == {*CHOICES}
    with pytest.raises(TransportError, match="transport 'gloo' needs ranks started by torchrun"):
        choose("gloo", np, MPI.COMM_SELF)


def test_collectives_are_messages_or_operations(alone):
    assert alone.with_collectives("library").collectives == "library"
    with pytest.raises(TransportError, match="collectives: expected one of pairs, library, found 'rings'"):
        alone.with_collectives("rings")


def test_a_pytorch_without_cuda_is_for_kernels_on_arrays_alone(alone, monkeypatch):
    def view(_array):
        raise RuntimeError("No CUDA driver\nmore")

    monkeypatch.setattr("executor.torch.tensors.tensor_of", view)
    with cupy_double.installed() as cupy:
        message = (
            r"PyTorch cannot view arrays of cupy \(No CUDA driver\): install one with CUDA, or use --kernels arrays"
        )
        with pytest.raises(BackendError, match=message):
            alone.use_device(cupy)
        replace(alone, library="arrays").use_device(cupy)


@pytest.fixture
def cupy(monkeypatch):
    """The double of CuPy beside a PyTorch that says it has a GPU and NCCL."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    with cupy_double.installed() as double:
        yield double


def fail(*_arguments):
    raise RuntimeError("NCCL error in: NCCLUtils.cpp:94, unhandled system error\nncclSystemError: System call failed")


def test_gpus_of_their_own_take_nccl(alone, cupy, monkeypatch):
    monkeypatch.setattr(ranks, "group_of", lambda *_arguments: None)
    assert alone.choose_transport("auto", cupy) == alone.choose_transport("nccl", cupy) == Choice("nccl")
    assert alone.choose_transport("gloo", cupy) == Choice("gloo")


NO_NCCL = {
    "a PyTorch without it": ((dist, "is_nccl_available", lambda: False), "this PyTorch has no NCCL"),
    "one GPU of two ranks": (
        (ranks.ProcessGroupCluster, "all_gather", lambda _, value: [value, value]),
        "ranks 0 and 1 share a GPU, and NCCL needs one for each",
    ),
    "an NCCL that fails": (
        (ranks, "group_of", fail),
        "NCCL fails on rank 0 (NCCL error in: NCCLUtils.cpp:94, unhandled system error): NCCL_DEBUG=INFO says more",
    ),
}


@pytest.mark.parametrize("case", NO_NCCL)
def test_without_nccl_gloo_is_taken(alone, cupy, monkeypatch, case):
    planted, reason = NO_NCCL[case]
    monkeypatch.setattr(*planted)
    assert alone.choose_transport("auto", cupy) == Choice("gloo", {"nccl": reason})
    with pytest.raises(TransportError, match=re.escape(f"transport 'nccl': {reason}: use --transport gloo")):
        alone.choose_transport("nccl", cupy)


def test_a_pytorch_without_gloo(monkeypatch, capsys):
    monkeypatch.setattr(dist, "is_gloo_available", lambda: False)
    assert (exit_status(job_cluster), capsys.readouterr().err.count("\n")) == (2, 1)


def test_a_connection_that_is_lost_is_no_bug(alone, monkeypatch):
    monkeypatch.setattr("executor.torch.transport.GRACE_S", 0)
    with (
        pytest.raises(JobError, match=r"another rank is gone or late: Connection closed by peer \[127"),
        others_may_be_lost(),
    ):
        raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4242")
    with pytest.raises(RuntimeError, match="shapes"), others_may_be_lost():
        raise RuntimeError("shapes differ")


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "int32"])
def test_tensors_are_the_arrays_memory(dtype):
    array = np.arange(12).reshape(3, 4).astype(dtype)[:, 1:3]
    tensor = tensor_of(array)
    assert (str(tensor.dtype), tensor.stride()) == (f"torch.{dtype}", (4, 1))
    tensor += 1
    assert array.astype(int).tolist() == [[2, 3], [6, 7], [10, 11]]


def test_who_started_us():
    started = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    assert is_torchrun({**started, "HOME": "/"})
    assert not is_torchrun({name: value for name, value in started.items() if name != "RANK"})
    assert not is_torchrun({"PMI_RANK": "0", "PMI_SIZE": "2"})


def test_mpi_is_not_needed():
    code = "import sys; sys.modules['mpi4py'] = None; import executor.torch.ranks, tensor_partitioner.commands.execute"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
