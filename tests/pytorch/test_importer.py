"""A module of PyTorch becomes a graph that trains like it; what cannot be taken is named."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

import planner  # noqa: E402
from executor.data import DataError  # noqa: E402
from executor.data.base import check_numbers  # noqa: E402
from planner.explanations.explanation import costly_table  # noqa: E402
from planner.graph.ir import MOST_CHARACTERS, array_of, values as values_of  # noqa: E402
from planner.plans.plan_json import plan_from_json  # noqa: E402
from planner.pytorch import from_torch, graph_of  # noqa: E402
from planner.pytorch.state import contents  # noqa: E402
from tests.pytorch.eager import differences, trained_alike  # noqa: E402
from tests.pytorch.models import CASES, GPT, numbers, values  # noqa: E402
from tests.pytorch.test_never_wrong import Called  # noqa: E402

trained_like_eager = partial(trained_alike, bar=1e-11)


@pytest.mark.parametrize("name", CASES)
def test_three_steps_train_like_eager(name):
    module, inputs, loss, targets = CASES[name]()
    graph, of_loss, of_parameters = differences(module.double(), inputs, loss, targets)
    assert set(of_parameters) == {name for name, _ in module.named_parameters()} | {
        name for name, _ in module.named_buffers() if name.endswith(("running_mean", "running_var"))
    }
    assert of_loss < 1e-12
    assert max(of_parameters.values()) < 1e-10, of_parameters
    assert planner.plan(graph, workers=2).total_bytes > 0


def test_nodes_know_the_line_of_the_source():
    graph = from_torch(GPT(), (numbers(17, 4, 6), numbers(17, 4, 6)))
    (attention, *_) = (node for node in graph.nodes if node.op == "attention")
    file, number = attention.line.split(":")
    assert "scaled_dot_product_attention" in Path(file).read_text().splitlines()[int(number) - 1]
    backward = [node for node in graph.nodes if node.forward == attention.name]
    assert {node.line for node in backward} == {attention.line}
    assert {node.op for node in graph.nodes if not node.line} == {"add_n", "sgd"}  # what several lines ask for, or none
    plan = planner.plan(graph, workers=2)
    read = plan_from_json(plan.to_json().encode())
    assert [node.line for node in read.graph.nodes] == [node.line for node in graph.nodes]
    line = {node.name: node.line for node in graph.nodes}
    costliest = planner.explain(plan).costliest
    shown = zip(costliest, costly_table(costliest).columns[0].cells, strict=True)
    assert all(str(cell).endswith(line[unit.node.name]) for unit, cell in shown)


def test_inputs_and_results_have_names():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(6, 3)

        def forward(self, scale=None, x=None):
            return {"logits": self.fc(x), "loss": (self.fc(x) * scale).square().sum()}

    inputs = {"x": values(4, 6), "scale": values(3)}
    assert {"x", "scale"} <= trained_like_eager(Named(), inputs, bar=1e-12).tensors.keys()


class Recurrent(nn.Module):
    """Layers of cells, and their outputs and last states."""

    def __init__(self, kind, **options):
        super().__init__()
        self.cells = kind(5, 6, num_layers=2, **options)

    def forward(self, x):
        outputs, states = self.cells(x)
        states = states if isinstance(states, tuple) else (states,)
        return outputs.square().mean() + sum((state * state).sum() for state in states)


@pytest.mark.parametrize(
    "kind",
    [nn.LSTM, partial(nn.RNN, nonlinearity="relu"), partial(nn.RNN, bidirectional=True), partial(nn.GRU, bias=False)],
)
def test_recurrent_layers_train_like_eager(kind):
    module = Recurrent(kind, batch_first=True)
    graph = trained_like_eager(module, (values(4, 3, 5),))
    assert planner.plan(graph, workers=2).total_bytes > 0


WEIGHTS = torch.tensor([0.2, 3.0, 0.0, 1.5, 0.7, 0.1], dtype=torch.float64)


@pytest.mark.parametrize("labels", [torch.tensor([2, 0, 5, 1]), torch.tensor([2, -100, 5, -100])], ids=["all", "some"])
@pytest.mark.parametrize(
    "loss",
    [
        lambda x, y: F.cross_entropy(x[0], y[0]) + F.cross_entropy(x.T[None], y[None]),
        lambda x, y: F.nll_loss(F.log_softmax(x, 1), y),
        lambda x, y: F.nll_loss(F.log_softmax(x, 1)[:, :, None], y[:, None], reduction="none").square().sum(),
        lambda x, y: F.nll_loss(F.log_softmax(x, 1), y, weight=WEIGHTS.square()),
    ],
)
def test_losses_of_labels_train_like_eager(loss, labels):
    trained_like_eager(nn.Linear(3, 6), (values(4, 3),), loss, (labels,))


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_classes_that_cannot_be_are_no_class_of_any_row(reduction):
    def loss(x, y):
        hidden = torch.tensor([False, False, False, True, False, False])
        x = x.masked_fill(hidden if reduction == "none" else hidden & (y < 0)[:, None], -torch.inf)
        smoothing = 0.0 if reduction == "none" else 0.1
        return F.cross_entropy(x, y, reduction=reduction, label_smoothing=smoothing).sum()

    trained_like_eager(nn.Linear(3, 6), (values(4, 3),), loss, (torch.tensor([2, -100, 5, 1]),))


def test_a_batch_in_which_no_row_counts_changes_nothing():
    labels = torch.full((4,), -100)
    _, of_loss, of_parameters = differences(nn.Linear(3, 6).double(), (values(4, 3),), F.cross_entropy, (labels,))
    assert np.isnan(of_loss)  # as both losses are
    assert max(of_parameters.values()) == 0


@pytest.mark.parametrize("ignored", [2, 255])
def test_the_label_that_is_left_out_may_be_any(ignored):
    loss, labels = partial(F.cross_entropy, ignore_index=ignored), torch.tensor([1, ignored, 5, 2])
    graph = trained_like_eager(nn.Linear(3, 6), (values(4, 3),), loss, (labels,))
    assert graph.tensors["target"].init.ignored == (None if ignored == 2 else ignored)
    check_numbers("target", graph.tensors["target"], labels.numpy())
    with pytest.raises(DataError, match="expected numbers from 0 below 6"):
        check_numbers("target", graph.tensors["target"], np.array([7]))


def shifted_labels(x):
    labels = F.pad(torch.arange(4) % 3, (0, 2), value=-100)[2:]
    return F.cross_entropy(x, labels) + F.cross_entropy(x, (x[:, 0] > 0).long() * 101 - 100)


@pytest.mark.parametrize(
    "function",
    [
        shifted_labels,
        lambda x: x * x[(x[:, 0] > 0).long() - 1],
        lambda x: x * sum(test((x * 9).long(), 0.5) for test in (torch.lt, torch.le, torch.gt, torch.ge, torch.ne)),
        lambda x: x * ((x * 9).long() > -0.5) + (x * 9).long().eq(0.5),
        lambda x: F.rms_norm(x * 1e-8, (6,)),
        lambda x: (x * torch.tensor([[1.0], [0.0], [1.0], [1.0]], dtype=x.dtype)).norm(dim=1),
        lambda x: torch.logsumexp(x.masked_fill(torch.ones(4, 6, dtype=torch.bool).tril(-1), -torch.inf), 0).exp(),
        lambda x: F.cross_entropy(x.view(2, 2, 6).movedim(-1, 1), torch.tensor([[1, 2], [0, 1]])),
        lambda x: F.mse_loss(x.sum(), x.mean()),
        lambda x: (F.layer_norm(x.view(4, 6, 1), (1,)) + x.view(4, 6, 1)).square(),
        lambda x: F.max_pool2d(x.view(1, 1, 4, 6), 3, 2, 1, ceil_mode=True),
        lambda x: F.max_pool2d(x.view(1, 1, 4, 6), (3, 2), 2, 1, dilation=(1, 3), ceil_mode=True),
        lambda x: F.interpolate(x.view(1, 1, 4, 6), (5, 12), mode="bilinear", antialias=True),
        lambda x: F.interpolate(x.view(1, 1, 4, 6), scale_factor=1.7, mode="bilinear"),
    ],
)
def test_what_is_easily_taken_wrongly_trains_like_eager(function):
    trained_like_eager(returning(function), (values(4, 6),))


class Large(nn.Module):
    """A parameter that would fill the memory, and a buffer whose content matters."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(1 << 20, 1 << 20, bias=False)
        self.first = self.fc
        self.register_buffer("factor", torch.arange(1 << 4) / 3)

    def forward(self, x):
        return (self.first(x)[:, :16] * self.factor).sum()


def test_a_large_module_takes_no_memory():
    graph = graph_of(lambda: (Large(), torch.zeros(2, 1 << 20)))
    assert graph.tensors["fc.weight"].nbytes == 1 << 42
    (factor,) = (tensor for tensor in graph.tensors.values() if tensor.role == "constant")
    assert np.allclose(array_of(factor), np.arange(16) / 3)


def returning(function):
    return Called(lambda _, x: function(x))


@pytest.mark.parametrize("rows", [40000, 600000])
def test_a_buffer_in_no_file_is_kept_unless_it_is_too_large(rows):
    module = Called(lambda self, x: x * self.factor)
    module.register_buffer("factor", torch.randn(rows, 6), persistent=False)
    if rows == 40000:
        trained_like_eager(module, (values(rows, 6),))
        return
    with pytest.raises(planner.GraphError, match=f"more than {MOST_CHARACTERS}"):
        from_torch(module, (torch.randn(rows, 6),))


def test_what_layers_compute_alike_is_computed_once(monkeypatch):
    shapes = []
    monkeypatch.setattr(contents, "values", lambda array: shapes.append(array.shape) or values_of(array))

    def three_layers(x):
        for _ in range(3):
            x = x * torch.arange(6.0).cos()
        return x

    from_torch(returning(three_layers), (torch.randn(4, 6),))
    assert shapes == [(6,)]


def test_constants_that_differ_in_one_number_or_a_change_differ():
    def angles(x):
        same, changed = torch.arange(6.0, dtype=x.dtype), torch.arange(6.0, dtype=x.dtype)
        changed.add_(1)
        whole, real, truth = (torch.full((6,), 1, dtype=x.dtype) / number for number in (2, 2.5, True))
        return x * same.cos() + x * changed.cos() + x * changed.add_(1).cos() + x * whole + x * real + x * truth

    trained_like_eager(returning(angles), (values(4, 6),))
