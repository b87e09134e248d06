"""One step of an imported graph beside the module's own: what is equal passes, what is not is named."""

import re

import pytest

from tests.launcher import exit_status

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

from executor.kernels import KERNELS  # noqa: E402
from executor.torch.verification import verify  # noqa: E402
from planner.errors import GraphError  # noqa: E402
from planner.pytorch import from_torch, importing  # noqa: E402
from planner.pytorch.arguments import DefectError  # noqa: E402
from planner.pytorch.translate.call import CONVERTERS  # noqa: E402
from tensor_partitioner.commands.plan import main  # noqa: E402

MODEL = """
import torch
from torch import nn

def make(batch: int = 4):
    layer = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    return layer, torch.randn(batch, 6), nn.functional.cross_entropy, torch.randint(0, 3, (batch,)), torch.optim.Adam(
        layer.parameters())

def graph():
    import planner
    return planner.model("mlp-2-8", batch=4)

def fails():
    return 1 // 0
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "verified_model.py"
    path.write_text(MODEL)
    return path


def command(capsys, *arguments):
    return exit_status(main, list(map(str, arguments)), obj=verify), *capsys.readouterr()


def test_equal_steps_pass(file, capsys):
    status, printed, said = command(capsys, f"{file}:make", "--verify", "--batch", 8)
    assert (status, said) == (0, "")
    assert "in float64" in printed
    assert {"loss", "0.weight.grad", "0.weight", "2.bias"} <= set(re.findall(r"[\w.]+", printed))


def test_a_wrong_kernel_is_found(file, capsys, monkeypatch):
    right = KERNELS["relu"]

    def wrong(call):
        right(call)
        call.outputs[0][...] += 1e-6

    monkeypatch.setitem(KERNELS, "relu", wrong)
    for options in (["--verify"], ["--workers", 2]):
        status, _, said = command(capsys, f"{file}:make", *options)
        assert status == 1
        assert re.fullmatch(r"error: \S+:make: \d+ of 9 tensors differ from PyTorch, most \S+, .+\n", said)


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("{}:make", ["--workers", "2"], "--verify plans nothing: expected no --workers"),
        ("mlp-2-8", [], r"expected path/to/file.py:function, found 'mlp-2-8'"),
        ("{}:graph", [], r"expected \(module, inputs\).* found Graph"),
        ("{}:fails", [], r"verified_model.py:\d+: fails\(\): ZeroDivisionError"),
    ],
)
def test_what_cannot_be_verified_is_one_line(file, capsys, source, options, message):
    status, printed, said = command(capsys, source.format(file), "--verify", *options)
    assert (status, printed, said.count("\n")) == (2, "", 1)
    assert re.search(message, said)


def regularised():
    layer = nn.Linear(6, 3)

    def loss(result, target):
        return nn.functional.mse_loss(result, target) + 0.1 * layer.weight.square().sum()

    return layer, torch.randn(4, 6), loss, torch.randn(4, 3), torch.optim.SGD(layer.parameters(), lr=0.1)


class Mixed(nn.Module):
    """A loss with a buffer, which has the module's dtype."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mix", torch.randn(3, 3))

    def forward(self, result, target):
        return (result @ self.mix - target).square().mean()


def mixed():
    return nn.Linear(6, 3), torch.randn(4, 6), Mixed(), torch.randn(4, 3)


def sparse():
    return nn.Embedding(9, 4, sparse=True), torch.randint(0, 9, (4, 5)), nn.functional.mse_loss, torch.randn(4, 5, 4)


@pytest.mark.parametrize("make", [regularised, mixed, sparse])
def test_losses_and_gradients_of_every_kind(make):
    verdict = verify(make, make.__name__)
    assert (verdict.failure, verdict.dtype, verdict.instead) == ("", "float64", "")


class Single(nn.Linear):
    def forward(self, x):
        return super().forward(x.float()).sum()


def test_a_dtype_that_the_module_insists_on_is_taken_and_said():
    verdict = verify(lambda: (Single(6, 6), torch.randn(4, 6)), "single")
    assert not verdict.failure
    assert verdict.dtype == "float32"
    assert re.match(r", as float64 failed: \S", verdict.instead)
    assert "\n" not in verdict.instead


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ((), r"compared with PyTorch: 9 tensors are equal after 3 steps in float64\n$"),
        (("--no-verify",), r"^(?!.*compared with PyTorch)"),
    ],
)
def test_what_is_planned_is_compared_unasked(file, capsys, options, line):
    status, printed, said = command(capsys, f"{file}:make", "--workers", 2, *options)
    assert (status, said) == (0, "")
    assert re.search(line, printed, re.DOTALL)


def test_what_takes_long_is_not_compared_unasked(file, capsys, monkeypatch):
    monkeypatch.setattr("executor.torch.verification.OPERATIONS_PER_SECOND", 1.0)
    _, printed, _ = command(capsys, f"{file}:make", "--workers", 2)
    assert re.search(r"not compared with PyTorch, which may take \d+ s; --verify does it\n$", printed)


def test_a_module_that_cannot_be_copied_is_compared():
    def make():
        module = nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 3)), nn.Tanh())
        return module, (torch.randn(2, 4),), F.mse_loss, (torch.randn(2, 3),)

    assert not verify(make, "normalized").failure


def test_what_pytorch_cannot_train_is_said_in_one_line():
    class Once(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)
            self.register_buffer("memory", torch.zeros(3))

        def forward(self, x):
            self.memory.add_(self.layer(x).mean(0))
            return self.memory.square().sum()

    with pytest.raises(GraphError, match=r"^PyTorch itself cannot train the module: RuntimeError: [^\n]*$"):
        verify(lambda: (Once(), (torch.randn(2, 4),)), "once")


def test_a_defect_is_said_in_one_line_and_has_its_cause(monkeypatch):
    def broken(t, call):
        raise KeyError("nothing")

    monkeypatch.setitem(CONVERTERS, "tanh", broken)
    monkeypatch.setitem(CONVERTERS, "sigmoid", broken)

    class Bent(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            return torch.sigmoid(torch.tanh(self.layer(x))).sum()

    with pytest.raises(
        DefectError, match=r"^[^\n]*aten\.tanh\.default could not be converted[^\n]*test_verify\.py:\d+[^\n]*$"
    ) as raised:
        from_torch(Bent(), (torch.randn(2, 4),))
    assert isinstance(raised.value.__cause__, KeyError)


@pytest.mark.parametrize("stage", ["fix_extents", "entries"])
def test_a_defect_at_any_stage_is_one_line(monkeypatch, stage):
    def broken(*_, **__):
        raise IndexError("of nothing")

    monkeypatch.setattr(importing, stage, broken)
    with pytest.raises(DefectError, match=r"^[^\n]*the import failed \(IndexError: of nothing\)[^\n]*$"):
        from_torch(nn.Sequential(nn.Linear(4, 3), Total()), (torch.randn(2, 4),))


class Total(nn.Module):
    def forward(self, x):
        return x.sum()
