"""What PyTorch does at the edges the imported graph does too, on fresh data at every step, or it is refused."""

import copy
import re

import pytest

torch = pytest.importorskip("torch")
import numpy as np  # noqa: E402
import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

from executor.torch.batches import Batch, array_of  # noqa: E402
from planner.errors import GraphError  # noqa: E402
from planner.pytorch import graph_of  # noqa: E402
from planner.pytorch.user_model import UserModel, imported, user_model  # noqa: E402
from tests.pytorch.eager import STEPS, trainer_of  # noqa: E402
from tests.pytorch.outcomes import is_refused_beside_pytorch  # noqa: E402


def compare(module, *batches, optimizer=torch.optim.AdamW):
    """Train a module, and its graph, on one batch after the other; return the largest difference, and the graph."""
    module = module.double()
    twin = copy.deepcopy(module)
    model = UserModel(module, batches[0], None, (), optimizer(module.parameters(), lr=0.05))
    graph = imported(model)
    trainer, theirs, gaps = trainer_of(graph, module), optimizer(twin.parameters(), lr=0.05), []
    for step, batch in enumerate(batches):
        theirs.zero_grad()
        result = twin(*batch)
        loss = getattr(result, "loss", result)
        loss.backward()
        theirs.step()
        trainer.load(Batch(graph, module, batch, ()), step)
        trainer.run()
        gaps.append(gap(trainer.host_copy(graph.metrics["loss"]), array_of(loss)))
    for name, value in twin.state_dict().items():
        if (kept := graph.entries[name].tensor) is not None:
            ours = trainer.host_copy(kept).reshape(value.shape)
            gaps.append(gap(ours.astype(np.float64), array_of(value).astype(np.float64)))
    return max(gaps), graph


def gap(ours, theirs):
    """Return the largest difference, none of what is equal or no number in both, infinity of that in one alone."""
    is_same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    with np.errstate(invalid="ignore"):
        gaps = np.where(is_same, 0.0, np.abs(ours - theirs))
    return float(np.nan_to_num(gaps, nan=np.inf).max(initial=0))


def fresh(*shape):
    """Batches of other values at every step, of shape [n, 6] unless told."""
    return [(torch.randn(shape or (4, 6), dtype=torch.float64),) for _ in range(STEPS)]


class Called(nn.Module):
    """A layer, and a function of what it returns, and of other data, whose elements are summed."""

    def __init__(self, function, width=6, **buffers):
        super().__init__()
        self.fc, self.function = nn.Linear(width, width), function
        for name, content in buffers.items():
            self.register_buffer(name, content)

    def forward(self, x, *others):
        return self.function(self, self.fc(x), *others).sum()


NAMES = ("step", "iteration", "one", "loss", "constant", "add", "mul", "x", "target", "grad")


class Named(nn.Module):
    """Parameters, or buffers, that are called as a graph calls its own tensors."""

    def __init__(self, kind):
        super().__init__()
        for name in NAMES:
            setattr(self, name, kind(torch.randn(6)))
        self.weight = nn.Parameter(torch.randn(6))

    def forward(self, x):
        for name in NAMES:
            x = torch.tanh(x * getattr(self, name) + self.weight) + 1
        return (x * x).sum()


@pytest.mark.parametrize("kind", [nn.Parameter, nn.Buffer])
def test_names_of_the_user_and_of_the_graph_never_meet(kind):
    worst, graph = compare(Named(kind), *fresh())
    assert worst < 1e-12
    assert all((graph.entries[name].tensor is None) == (kind is nn.Buffer) for name in NAMES)


@pytest.mark.parametrize("name", ["step", "loss", "grad"])
def test_an_input_may_have_any_name(name):
    module = Called(lambda self, x: x * x)
    scope = {"Called": Called}
    exec(f"class Other(Called):\n    def forward(self, {name}):\n        return super().forward({name})", scope)
    module.__class__ = scope["Other"]
    assert compare(module, *fresh())[0] < 1e-12


def test_a_buffer_called_step_comes_back_as_it_was():
    _, graph = compare(Called(lambda self, x: x * self.step, step=torch.tensor(3.0)), *fresh())
    assert graph.entries["step"].tensor is None
    assert {"step_", "step_.next"} <= graph.tensors.keys()


def at(x, values):
    """Values with the gradient of x."""
    return x - x.detach() + values.detach()


def saturated(x):
    """Probabilities that are exactly zero and one, for which the logarithm has to be clamped."""
    return torch.sigmoid(1000 * at(x, x.sign()))


def constant(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


@pytest.mark.parametrize(
    "function",
    [
        lambda self, x: torch.maximum(x, x) + torch.clamp(x - x.detach() + 1, 1, 2),
        lambda self, x: torch.atan2(x - x.detach(), 2 * (x - x.detach())) + torch.atan2(x, constant(0.5)),
        lambda self, x: torch.pow(x - x.detach(), (x - x.detach())) + torch.pow(x.abs() + 1, x),
        lambda self, x: torch.floor(torch.arange(60).view(1, 10, 6) / 49).double() * x[:, None],
        lambda self, x: F.binary_cross_entropy(saturated(x), (x > 0).double()),
        lambda self, x: F.binary_cross_entropy(saturated(x), (x < 0).double()),
    ],
)
def test_gradients_at_bounds_are_pytorchs(function):
    assert compare(Called(function), *fresh(), optimizer=torch.optim.SGD)[0] < 1e-11


@pytest.mark.parametrize("dim", [None, -1, 0])
def test_weight_norm_of_any_dimension(dim):
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(6, 6), dim=dim)
    assert compare(nn.Sequential(layer, Called(lambda self, x: x * x)), *fresh())[0] < 1e-12


@pytest.mark.parametrize("draw", [lambda: torch.randn(6), lambda: torch.arange(6.0)[torch.randperm(6)]])
def test_random_buffers_are_those_of_the_seed(draw):
    def make():
        torch.manual_seed(5)
        return Called(lambda self, x: x * self.noise, noise=draw()), (torch.randn(4, 6),)

    expected = imported(user_model(make()))
    graph = graph_of(make)
    assert (graph.tensors, graph.nodes) == (expected.tensors, expected.nodes)


@pytest.mark.parametrize("register", ["register_step_pre_hook", "register_step_post_hook"])
def test_hooks_of_an_optimizers_steps_are_refused(register):
    module = Called(lambda self, x: x * x)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    getattr(optimizer, register)(lambda *_: None)
    with pytest.raises(GraphError, match="SGD has step hooks, which would not run"):
        imported(UserModel(module, (torch.randn(4, 6),), None, (), optimizer))


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adagrad])
def test_an_optimizer_that_has_stepped_is_refused(kind):
    module = Called(lambda self, x: x * x)
    optimizer = kind(module.parameters())
    imported(UserModel(module, (torch.randn(4, 6),), None, (), optimizer))
    module(torch.randn(4, 6)).backward()
    optimizer.step()
    with pytest.raises(GraphError, match=re.escape(f"{kind.__name__} has already taken steps")):
        imported(UserModel(module, (torch.randn(4, 6),), None, (), optimizer))


WITHOUT_EFFECT = {
    "its sign": lambda h, other: h * other.sign(),
    "hidden": lambda h, other: h + other.masked_fill(torch.ones(6, dtype=torch.bool), 2.0),
    "its shape": lambda h, other: h * torch.full_like(other, 3.0),
    "its greatest": lambda h, other: h.gather(1, other.topk(2)[1]),
}


@pytest.mark.parametrize("function", WITHOUT_EFFECT.values(), ids=WITHOUT_EFFECT)
def test_decay_changes_what_has_a_gradient_of_zeros_and_not_what_has_none(function):
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x):
            h = self.first(x)
            return function(h, self.second(h)).square().sum()

    assert compare(Pair(), *fresh())[0] < 1e-12


def test_special_values_warn_nobody(recwarn):
    compare(Called(lambda self, h: (h - h).log() * (h * 1e200).exp() + (h - h) / (h - h)), *fresh())
    assert [warning for warning in recwarn if warning.category is RuntimeWarning] == []


class Codes(nn.Module):
    """Running means in parameters that no gradient reaches, and that forward assigns."""

    def __init__(self):
        super().__init__()
        self.fc, self.codes, self.sums = nn.Linear(6, 6), nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(6))

    def forward(self, x):
        y = self.fc(x)
        loss = (y - self.codes.detach()).square().mean()
        self.sums = nn.Parameter(0.9 * self.sums + y.mean(0))
        self.codes = nn.Parameter(self.sums / 10)
        return loss


def test_parameters_without_a_gradient_are_what_forward_makes_of_them():
    assert compare(Codes(), *fresh())[0] < 1e-12


class Switching(nn.Module):
    def __init__(self, switch):
        super().__init__()
        self.fc, self.switch = nn.Linear(6, 6), switch

    def forward(self, x):
        self.switch(self.fc)
        return self.fc(x.clone().requires_grad_()).square().sum() + self.fc.weight.sum()


def test_what_is_trained_and_switched_in_forward_is_refused_beside_pytorch():
    assert is_refused_beside_pytorch(Switching(lambda fc: fc.requires_grad_(False)))


def test_what_is_trained_may_be_said_again():
    assert compare(Switching(lambda fc: fc.requires_grad_(True)), *fresh())[0] < 1e-12


class Replaced(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = self.other = nn.Parameter(torch.randn(6))
        self.fc = nn.Linear(6, 6)

    def forward(self, x):
        self.one = nn.Parameter(x.mean(0))
        return (self.fc(x) * self.other.detach()).sum()


def test_one_of_two_names_of_a_parameter_is_not_given_another():
    with pytest.raises(GraphError, match="one, which is shared under other names"):
        compare(Replaced(), *fresh())


def joined_where_it_lies(self, x):
    mask = x > 0
    same = mask
    mask |= x < -1
    mask[:, 0] &= x[:, 1] > 0
    same[1] ^= True
    return x * mask


def joined_with_what_was(self, x):
    self.seen |= x.detach().mean(0) > 0
    self.seen[1:] &= x.detach()[0, 1:] < 0.5
    return x * self.seen


def saved_on_the_cpu(self, x):
    with torch.autograd.graph.save_on_cpu():
        return x.sin()


def written(self, x):
    y = torch.empty_like(x)
    y[:, :3] = x[:, 3:]
    y[:, 3:].copy_(x[:, :3])
    return y * torch.empty(6, dtype=x.dtype).detach().fill_(2.0)


def without_gradients(passed):
    """What passes through no_grad unchanged keeps its gradient."""

    def function(self, x):
        with torch.no_grad():
            same = passed(x)
            scale = same.abs().mean()
        return x * scale + same.square()

    return function


def of_complex(function):
    """A function of real numbers, and complex ones, of x [n, 6]."""

    def of_pairs(self, x):
        result = function(x[:, :3], torch.view_as_complex(x.view(-1, 3, 2)))
        return torch.view_as_real(result) * torch.arange(1.0, 3.0)

    return of_pairs


def mapped(self, x):
    column = x.detach()[:, 0]
    return x.square().sum() + torch.vmap(torch.vmap(torch.mul, (None, 0)), (0, None))(column, column).sum()


def turned_on_the_way(self, y):
    row = y[0]
    y.t_()
    row.unsqueeze_(0).mul_(3)
    y.mul_(2)
    return y.sin().sum() + row.sin().sum() + (y * torch.arange(24.0).view(6, 4)).sum()


def cut_in_place(self, y):
    z = y * self.fc.bias
    z.detach_()
    return z * self.fc.weight[0]


def of_no_weight(ignored):
    def function(self, y):
        labels, weight = torch.zeros(4, dtype=torch.int64), constant(0.0, 1, 2, 3, 4, 5)
        return F.cross_entropy(y, labels, weight, ignore_index=ignored, label_smoothing=0.1)

    return function


EDGES = {
    "joined where it lies": joined_where_it_lies,
    "joined with what was": joined_with_what_was,
    "saved on the CPU": saved_on_the_cpu,
    "written later": written,
    "a cast that is changed": lambda self, x: x + x.float().mul_(2).to(x.dtype),
    "cast to its own dtype": without_gradients(lambda x: x.to(x.dtype).contiguous()),
    "dropout that drops nothing": without_gradients(lambda x: F.dropout(x, 0.5, training=False)),
    "a view": without_gradients(lambda x: x.view(4, 6)),
    "complex": of_complex(lambda r, c: torch.exp(1j * r) * c - r + c * torch.arange(3)),
    "products and quotients": of_complex(lambda r, c: c * r / (2 + r * r) + r * c + r / (3 + c * c.conj())),
    "complex, in place": of_complex(lambda r, c: (c * r).sub_(c, alpha=2).div_(3).neg_().mul_(2j).add_(r)),
    "complex, written": of_complex(lambda r, c: (c * r).copy_(c * 3).masked_fill_(r > 0, 1.0)),
    "complex, shifted": of_complex(lambda r, c: torch.fft.fftshift(torch.fft.fft(c)) * r),
    "a diagonal of columns": lambda self, x: torch.diagonal(x.t()[1:4], 1).square(),
    "a diagonal outside": lambda self, x: torch.diagonal(x, -4).sum() + x,
    "diagonals": lambda self, x: torch.diagonal(x.view(2, 2, 6)[:, :, 1:4], dim1=2, dim2=0) * x[:2, :2],
    "mapped": mapped,
    "turned on the way": turned_on_the_way,
    "cut in place": cut_in_place,
    "a mean over rows of no weight": of_no_weight(5),
    "a mean over rows that are ignored": of_no_weight(0),
}


@pytest.mark.parametrize("name", EDGES)
def test_what_pytorch_does_is_done(name):
    assert compare(Called(EDGES[name], seen=torch.zeros(6, dtype=torch.bool)), *fresh())[0] < 1e-12


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
def test_scalars_are_trained(kind):
    module = Called(lambda self, x: x * self.scale)
    module.scale = nn.Parameter(torch.tensor(0.5))
    assert compare(module, *fresh(), optimizer=kind)[0] < 1e-12


def elsewhere(self, x):
    with torch.autocast("cuda"):
        return x @ x.T


def changed_without_gradient(self, x):
    with torch.no_grad():
        x[:, 1:].mul_(2)
    return x * x


def other_memory(self, x):
    data = self.fc.weight.data
    data.set_((data * 0.5).contiguous())
    return x


HERE = r"test_never_wrong\.py:\d+: "
REFUSED = {
    "another device": (elsewhere, rf"{HERE}.*Disabling autocast.*[Cc]ast explicitly"),
    "a generator": (lambda self, x: x * torch.rand(6, generator=torch.Generator()), "numbers of a Generator cannot be"),
    "changed without a gradient": (changed_without_gradient, rf"{HERE}mul_ under no_grad changes a tensor in autograd"),
    "read by strides": (lambda self, x: x[:, 1:].as_strided((3, 5), (6, 1)), "use slices or unfold"),
    "mapped too often": (lambda self, x: mapped(self, x.repeat(5, 1)), "nested calls run a function 400 times or more"),
    "other memory": (other_memory, rf"{HERE}set_ changes a tensor's strides"),
    "turned in every step": (lambda self, x: x * self.step.t_().sum(), rf"{HERE}t_ changes a tensor's strides"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_done_is_refused(name):
    function, said = REFUSED[name]
    if name == "another device" and torch.cuda.is_available():
        pytest.skip("autocast has its device here")
    with pytest.raises(GraphError, match=said):
        imported(UserModel(Called(function, step=torch.randn(6, 6)), (torch.randn(4, 6),), None, (), None))
