"""The examples train on several workers as PyTorch trains them; a seeded draw of what results/pytorch_training does."""

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import planner  # noqa: E402
from executor.check import relative_difference  # noqa: E402
from executor.torch.state_files import array_of  # noqa: E402
from executor.weights import Weights  # noqa: E402
from planner.layout.region import whole  # noqa: E402
from planner.model_source import function_of  # noqa: E402
from planner.plans.plan import Plan  # noqa: E402
from planner.pytorch.made import imported, parts  # noqa: E402
from tests.cross.loopback import Loopback  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
NAMES = sorted(path.stem for path in (ROOT / "examples").glob("*.py") if "def small(" in path.read_text())
STEPS, RATE = 3, 0.05
BARS = {"float64": 1e-10, "float32": 1e-4}


class Imported(Loopback):
    """All workers of a plan in one process, from a module's weights, on its example inputs."""

    def __init__(self, plan, made):
        self.weights = Weights.of(
            {name: array_of(one).copy() for name, one in made.module.state_dict().items()}, plan.graph
        )
        names = [
            name
            for name, tensor in plan.graph.tensors.items()
            if tensor.init is not None and tensor.init.kind == "data"
        ]
        self.data = dict(zip(names, map(array_of, (*made.inputs, *made.targets)), strict=True))
        super().__init__(plan, planner.lower(plan))

    def fill(self, name):
        tensor = self.plan.graph.tensors[name]
        if name in self.data:
            content = self.data[name].reshape(tensor.shape)
        elif name in self.weights:
            content = self.weights.tile(tensor, whole(tensor.shape))
        else:
            super().fill(name)
            return
        for worker, region in enumerate(self.program.regions[name]):
            at = np.ix_(*[[i for start, stop in runs for i in range(start, stop)] for runs in region])
            self.array(worker, self.program.tensors[name])[...] = content[at] if region else content


def made_of(name, dtype, kind):
    torch.manual_seed(0)
    made = parts(function_of(f"{ROOT}/examples/{name}.py:small")())
    real = {"float64": torch.float64, "float32": torch.float32}[dtype]
    given = [[one.to(real) if one.is_floating_point() else one for one in some] for some in (made.inputs, made.targets)]
    module = made.module.to(real)
    optimizer = {"sgd": lambda p: torch.optim.SGD(p, lr=RATE), "adam": lambda p: torch.optim.Adam(p, lr=1e-3)}[kind]
    return made._replace(module=module, inputs=given[0], targets=given[1], optimizer=optimizer(module.parameters()))


def eager(made):
    losses = []
    for _ in range(STEPS):
        made.optimizer.zero_grad()
        found = made.module(*made.inputs)
        loss = found if made.loss is None else made.loss(found, *made.targets)
        loss.backward()
        made.optimizer.step()
        losses.append(loss.item())
    return losses


def planned(graph, workers):
    if workers == 1:
        return Plan(graph, 0, (), dict.fromkeys(graph.tensors, ()), {node.name: () for node in graph.nodes})
    return planner.plan(graph, workers=workers)


def compared(name, dtype, kind, workers):
    """The differences of losses and of parameters from PyTorch's, by name; and the graph."""
    made = made_of(name, dtype, kind)
    graph = imported(made)
    loop, losses = Imported(planned(graph, workers), made), []
    for _ in range(STEPS):
        loop.step()
        losses.append(float(loop.gather(graph.metrics["loss"])))
    expected = eager(made)
    apart = {}
    for entry, one in made.module.state_dict(keep_vars=True).items():
        tensor = graph.entries[entry].tensor
        if tensor is not None:
            theirs = array_of(one)
            apart[entry] = relative_difference(loop.gather(tensor).reshape(theirs.shape), theirs)
    gradients = {entry: one.grad for entry, one in made.module.named_parameters()}
    return max(abs(a - b) / abs(b) for a, b in zip(losses, expected, strict=True)), apart, gradients


def test_there_are_examples():
    assert len(NAMES) >= 8


@pytest.mark.parametrize("name", NAMES)
def test_workers_train_like_eager(name):
    number = NAMES.index(name)
    workers, dtype = (8, 2)[number % 2], ("float64", "float32")[number // 2 % 2]
    of_loss, apart, _ = compared(name, dtype, "sgd", workers)
    assert of_loss < BARS[dtype]
    assert max(apart.values()) < BARS[dtype], apart


@pytest.mark.parametrize("name", ["lstm", "vit"])
def test_adam_trains_what_has_a_gradient(name):
    of_loss, apart, gradients = compared(name, "float64", "adam", 2)
    assert of_loss < BARS["float64"]
    largest = max(float(one.abs().max()) for one in gradients.values())
    told = [entry for entry, one in gradients.items() if float(one.abs().max()) > 1e-10 * largest]
    assert len(told) > len(gradients) // 2
    assert max(apart[entry] for entry in told) < 1e-6
