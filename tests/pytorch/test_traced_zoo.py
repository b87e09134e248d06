"""Models of the zoo, written as users of PyTorch write them, are planned like the zoo's own."""

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

import planner  # noqa: E402
from examples import pytorch_model, resnet50  # noqa: E402
from planner.graph import Optimizer  # noqa: E402

STEPS, HIDDEN = 20, 64
"""Timesteps of the recurrent model, as in the zoo, and its width, everywhere."""


class Fused(nn.Module):
    """PyTorch's LSTM and a classifier of every timestep."""

    def __init__(self):
        super().__init__()
        self.lstm, self.fc = nn.LSTM(HIDDEN, HIDDEN, bias=False), nn.Linear(HIDDEN, HIDDEN, bias=False)

    def forward(self, x):
        return self.fc(self.lstm(x)[0]).flatten(0, 1)


class Cells(nn.Module):
    """Layers of an LSTM and a classifier in a loop over timesteps."""

    def __init__(self, layers):
        super().__init__()
        self.x = nn.ModuleList(nn.Linear(HIDDEN, 4 * HIDDEN, bias=False) for _ in range(layers))
        self.h = nn.ModuleList(nn.Linear(HIDDEN, 4 * HIDDEN, bias=False) for _ in range(layers))
        self.fc = nn.Linear(HIDDEN, HIDDEN, bias=False)

    def forward(self, x):
        outputs, states = [], [(torch.zeros(x.shape[1], HIDDEN),) * 2 for _ in self.x]
        for step in x:
            y = step
            for number, (hidden, before) in enumerate(states):
                i, f, g, o = (self.x[number](y) + self.h[number](hidden)).chunk(4, dim=1)
                cell = torch.sigmoid(f) * before + torch.sigmoid(i) * torch.tanh(g)
                y = torch.sigmoid(o) * torch.tanh(cell)
                states[number] = y, cell
            outputs.append(self.fc(y))
        return torch.stack(outputs).flatten(0, 1)


def perceptron():
    layers = [layer for _ in range(3) for layer in (nn.Linear(64, 64, bias=False), nn.ReLU())]
    return nn.Sequential(*layers[:-1]), (torch.zeros(32, 64),), F.cross_entropy, (torch.arange(32),)


def residual():
    module, images, loss, labels, _ = resnet50.training(resnet50.ResNet((1, 1, 1, 1), 64, 1000), 8, 64, 1000)
    return module, (images,), loss, (labels,)


def recurrent():
    return Cells(2), *sequence(32)


def sequence(batch):
    labels = torch.arange(STEPS * batch) % HIDDEN
    return (torch.zeros(STEPS, batch, HIDDEN),), F.cross_entropy, (labels,)


def language():
    return pytorch_model.make(8)[:4]


WORDS = {"batch": 8, "sequence": pytorch_model.SEQUENCE, "vocabulary": pytorch_model.VOCABULARY}
IMAGES = {"batch": 8, "image": 64, "running_statistics": True}
TIMESTEPS = {"batch": 32, "input_width": HIDDEN, "classes": HIDDEN}
MODELS = {
    "mlp-3-64": (perceptron, {"batch": 32}, 0.0),
    "wresnet-14-1": (residual, IMAGES, 0.01),
    "transformer-2-256": (language, {**WORDS, "heads": pytorch_model.HEADS}, 0.01),
    "rnn-2-64": (recurrent, TIMESTEPS, 0.01),
}
"""By name in the zoo: how PyTorch makes it, the zoo's options, and the part by which bytes may differ."""


def traced(module, inputs, loss, targets):
    return planner.from_torch(module, inputs, loss=loss, targets=targets, optimizer=Optimizer("momentum", lr=0.01))


@pytest.mark.parametrize(("model", "placements"), [*((model, "S,R") for model in MODELS), ("transformer-2-256", "S")])
def test_a_traced_model_moves_what_the_zoo_s_moves(model, placements):
    make, options, allowed = MODELS[model]
    bytes_ = [
        planner.plan(graph, ways=(2, 2), placements=placements).total_bytes
        for graph in (planner.model(model, **options), traced(*make()))
    ]
    assert bytes_[0] > 0
    assert abs(bytes_[1] / bytes_[0] - 1) <= allowed, bytes_


def test_what_only_takes_data_is_taken_by_all_who_hold_it():
    graph = traced(Fused(), *sequence(8))
    plan = planner.plan(graph, ways=(2,), placements="S,R")
    taken = [node for node in graph.nodes if node.op == "select" and node.inputs == ("x",)]
    assert len(taken) == STEPS
    assert str(plan.layouts["x"][0]) == "R"
    assert {plan.strategies[node.name] for node in taken} == {("*",)}
