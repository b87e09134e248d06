"""What PyTorch does at the edges the imported graph does too, on fresh data at every step, or it is refused."""

import copy
import re

import pytest

torch = pytest.importorskip("torch")
import numpy as np  # noqa: E402
import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

from executor.cluster import single_rank  # noqa: E402
from executor.torch.batches import Batch, array_of  # noqa: E402
from executor.training import Trainer, rank_programs  # noqa: E402
from executor.weights import Weights  # noqa: E402
from planner.errors import GraphError  # noqa: E402
from planner.plans.plan import undivided  # noqa: E402
from planner.pytorch import graph_of  # noqa: E402
from planner.pytorch.user_model import UserModel, imported, user_model  # noqa: E402
from tests.pytorch.outcomes import is_refused_beside_pytorch  # noqa: E402

STEPS = 3


def compare(module, *batches, optimizer=torch.optim.AdamW):
    """Train a module, and its graph, on one batch after the other; return the largest difference, and the graph."""
    module = module.double()
    twin = copy.deepcopy(module)
    model = UserModel(module, batches[0], None, (), optimizer(module.parameters(), lr=0.05))
    graph = imported(model)
    trainer = Trainer(rank_programs(undivided(graph), 0, 0), single_rank(1), np, "p2p")
    trainer.begin_with(
        Weights.of({name: array_of(tensor).copy() for name, tensor in module.state_dict().items()}, graph)
    )
    theirs, gaps = optimizer(twin.parameters(), lr=0.05), []
    for step, batch in enumerate(batches):
        theirs.zero_grad()
        loss = twin(*batch)
        loss.backward()
        theirs.step()
        trainer.load(Batch(graph, module, batch, ()), step)
        trainer.run()
        gaps.append(gap(trainer.host_copy(graph.metrics["loss"]), array_of(loss)))
    for name, weight in twin.named_parameters():
        gaps.append(gap(trainer.host_copy(name).reshape(weight.shape), array_of(weight)))
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


def shifted_where_it_lies(self, x):
    numbers = (x.detach() * 4).round().abs().int()
    same = numbers
    numbers <<= 2
    same[1:] >>= 1
    return x * numbers


@pytest.mark.parametrize("function", [joined_where_it_lies, joined_with_what_was, shifted_where_it_lies])
def test_what_python_assigns_to_as_it_computes_is_changed_in_place(function):
    assert compare(Called(function, seen=torch.zeros(6, dtype=torch.bool)), *fresh())[0] < 1e-12


NAMES = ("step", "iteration", "one", "loss", "constant", "add", "mul", "x", "target", "grad")


class Named(nn.Module):
    """Parameters, buffers and a module that are called as a graph calls its own tensors."""

    def __init__(self, names, kind):
        super().__init__()
        self.names, self.kind = names, kind
        for name in names:
            if kind == "parameter":
                self.register_parameter(name, nn.Parameter(torch.randn(6)))
            elif kind == "buffer":
                self.register_buffer(name, torch.randn(6))
            else:
                self.add_module(name, nn.ParameterDict({"zeros": torch.randn(6), "grad": torch.randn(6)}))
        self.weight = nn.Parameter(torch.randn(6))

    def forward(self, x):
        for name in self.names:
            other = getattr(self, name)
            tensors = other.values() if isinstance(other, nn.ParameterDict) else (other,)
            for tensor in tensors:
                x = torch.tanh(x * tensor + self.weight) + 1
        return (x * x).sum()


@pytest.mark.parametrize("kind", ["parameter", "buffer", "module"])
def test_names_of_the_user_and_of_the_graph_never_meet(kind):
    worst, graph = compare(Named(NAMES, kind), *fresh())
    assert worst < 1e-12
    if kind == "buffer":
        assert all(graph.entries[name].tensor is None for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
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


def constant(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


@pytest.mark.parametrize(
    "function",
    [
        lambda self, x: F.relu6(at(x, (5 * x).round())) * 3 + F.hardtanh(at(x, x.round())),
        lambda self, x: F.hardswish(at(x, (3 * x).round())) + F.hardsigmoid(at(x, (3 * x).round())),
        lambda self, x: F.hardtanh(x - x.detach() + 1) + F.hardswish(x - x.detach() - 3) + F.relu6(x - x.detach()),
        lambda self, x: torch.std(x - x.detach() + 2, 1).sum() + torch.std(x, 0),
        lambda self, x: torch.maximum(x - x.detach() + 1, constant(1.0)) + torch.minimum(x - x.detach(), constant(0.0)),
        lambda self, x: torch.maximum(x, x) + torch.clamp(x - x.detach() + 1, 1, 2),
        lambda self, x: torch.atan2(x - x.detach(), 2 * (x - x.detach())) + torch.atan2(x, constant(0.5)),
        lambda self, x: (x - x.detach()) ** 0 + x**0 + 0 ** (x * x),
        lambda self, x: torch.pow(x - x.detach(), (x - x.detach())) + torch.pow(x.abs() + 1, x),
        lambda self, x: torch.floor(torch.arange(60).view(1, 10, 6) / 49).double() * x[:, None],
        lambda self, x: F.binary_cross_entropy(torch.where(x > 0, 1.0, torch.sigmoid(x)), (x > 0).double()),
        lambda self, x: torch.abs(x - x.detach()) + F.elu(x - x.detach()),
    ],
)
def test_gradients_at_bounds_are_pytorchs(function):
    assert compare(Called(function), *fresh(), optimizer=torch.optim.SGD)[0] < 1e-11


class Saturated(nn.Module):
    """Probabilities that are exactly zero and one, for which the logarithm has to be clamped."""

    def __init__(self, right):
        super().__init__()
        self.weight, self.right = nn.Parameter(torch.ones(6)), right

    def forward(self, x):
        probability = torch.sigmoid(1000 * self.weight * torch.sign(x))
        target = (x > 0) if self.right else (x < 0)
        return F.binary_cross_entropy(probability, target.double())


@pytest.mark.parametrize("right", [True, False])
def test_saturated_probabilities_have_a_finite_loss(right):
    assert compare(Saturated(right), *fresh(), optimizer=torch.optim.SGD)[0] < 1e-11


@pytest.mark.parametrize("dim", [None, -1, -2, 0, 1])
def test_weight_norm_of_any_dimension(dim):
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(6, 6), dim=dim)
    assert compare(nn.Sequential(layer, Called(lambda self, x: x * x)), *fresh())[0] < 1e-12


def drawn(after):
    """A module with a buffer of random numbers, which `after` draws."""

    def make():
        torch.manual_seed(5)
        module = Called(lambda self, x: x * self.noise)
        module.register_buffer("noise", after())
        return module, (torch.randn(4, 6),)

    return make


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.randn(6),
        lambda: torch.stack([torch.randn(6) * 2, torch.ones(6)]).prod(0),
        lambda: torch.arange(6.0)[torch.randperm(6)],
        lambda: torch.full((6,), torch.rand(()).item()),
    ],
)
def test_random_buffers_are_those_of_the_seed(draw):
    make = drawn(draw)
    expected = imported(user_model(make()))
    graph = graph_of(make)
    assert (graph.tensors, graph.nodes) == (expected.tensors, expected.nodes)


def test_what_python_sets_once_is_no_count():
    def kept(self, x):
        self.width = 6
        self.calls = 3
        return x * self.calls

    module = Called(kept)
    module.calls = 0
    assert compare(module, *fresh())[0] < 1e-12


@pytest.mark.skipif(torch.cuda.is_available(), reason="autocast has its device here")
def test_autocast_of_a_device_that_is_not_there_is_refused():
    def forward(self, x):
        with torch.autocast("cuda"):
            return x @ x.T

    with pytest.raises(GraphError, match=r"test_never_wrong\.py:\d+: .*Disabling autocast.*[Cc]ast explicitly"):
        imported(UserModel(Called(forward), (torch.randn(4, 6),), None, (), None))


def saved_otherwise(self, x):
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved / 2, lambda kept: kept):
        return x.sin()


def test_what_is_saved_otherwise_is_refused_beside_pytorch():
    assert is_refused_beside_pytorch(Called(saved_otherwise))


def test_a_generator_of_forward_is_refused():
    module = Called(lambda self, x: x * torch.rand(6, generator=torch.Generator()))
    with pytest.raises(GraphError, match="random numbers of a Generator cannot be reproduced"):
        imported(UserModel(module, (torch.randn(4, 6),), None, (), None))


def test_what_is_saved_elsewhere_is_the_same():
    def on_the_cpu(self, x):
        with torch.autograd.graph.save_on_cpu():
            return x.sin()

    assert compare(Called(on_the_cpu), *fresh())[0] < 1e-12


@pytest.mark.parametrize("register", ["register_step_pre_hook", "register_step_post_hook"])
def test_hooks_of_an_optimizers_steps_are_refused(register):
    module = Called(lambda self, x: x * x)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    getattr(optimizer, register)(lambda *_: None)
    with pytest.raises(GraphError, match="SGD has step hooks, which would not run"):
        imported(UserModel(module, (torch.randn(4, 6),), None, (), optimizer))


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop])
def test_an_optimizer_that_has_stepped_is_refused(kind):
    module = Called(lambda self, x: x * x)
    optimizer = kind(module.parameters())
    imported(UserModel(module, (torch.randn(4, 6),), None, (), optimizer))
    module(torch.randn(4, 6)).backward()
    optimizer.step()
    with pytest.raises(GraphError, match=re.escape(f"{kind.__name__} has already taken steps")):
        imported(UserModel(module, (torch.randn(4, 6),), None, (), optimizer))


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.SGD])
def test_scalars_are_trained(kind):
    module = Called(lambda self, x: x * self.scale)
    module.scale = nn.Parameter(torch.tensor(0.5))
    assert compare(module, *fresh(), optimizer=kind)[0] < 1e-12


def written(self, x):
    y = torch.empty_like(x)
    y[:, :3] = x[:, 3:]
    y[:, 3:].copy_(x[:, :3])
    return y * torch.empty(6, dtype=x.dtype).fill_(2.0)


def test_what_is_written_later_is_taken():
    assert compare(Called(written), *fresh())[0] < 1e-12


WITHOUT_GRADIENTS = {
    "cast to its own dtype": lambda h: h.to(h.dtype).contiguous(),
    "dropout that drops nothing": lambda h: F.dropout(h, 0.5, training=False),
    "a copy": lambda h: h.to(h.dtype, copy=True),
    "a view": lambda h: h.view(4, 6),
}


@pytest.mark.parametrize("passed", WITHOUT_GRADIENTS.values(), ids=WITHOUT_GRADIENTS)
def test_what_passes_through_no_grad_itself_keeps_its_gradient(passed):
    def function(module, h):
        with torch.no_grad():
            same = passed(h)
            scale = same.abs().mean()
        return h * scale + same.square()

    assert compare(Called(function), *fresh())[0] < 1e-12


def test_what_has_a_gradient_is_not_changed_without():
    def function(module, h):
        with torch.no_grad():
            h[:, 1:].mul_(2)
        return h * h

    with pytest.raises(GraphError, match=r"test_never_wrong\.py:\d+: mul_ under no_grad changes a tensor in autograd"):
        compare(Called(function), *fresh())


WITHOUT_EFFECT = {
    "its sign": lambda h, other: h * other.sign(),
    "an empty part of it": lambda h, other: torch.cat([h, other[:0]]),
    "hidden": lambda h, other: h + other.masked_fill(torch.ones(6, dtype=torch.bool), 2.0),
    "its shape": lambda h, other: h * torch.full_like(other, 3.0),
    "its dtype": lambda h, other: h.type_as(other),
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
    """Running means in parameters that no gradient reaches, each changed by what `change` does."""

    def __init__(self, change):
        super().__init__()
        self.fc, self.change = nn.Linear(6, 6), change
        self.codes, self.sums = nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(6))

    def forward(self, x):
        y = self.fc(x)
        loss = (y - self.codes.detach()).square().mean()
        self.change(self, y)
        return loss


def assigned(self, y):
    self.sums = nn.Parameter(0.9 * self.sums + y.mean(0))
    self.codes = nn.Parameter(self.sums / 10)


def in_place(self, y):
    with torch.no_grad():
        self.sums.mul_(0.9).add_(y.mean(0))
        self.codes.copy_(self.sums / 10)


def by_data(self, y):
    self.sums.data = self.sums.data * 0.9 + y.mean(0).detach()
    self.codes.data = self.sums.data / 10


@pytest.mark.parametrize("change", [assigned, in_place, by_data])
def test_parameters_without_a_gradient_are_what_forward_makes_of_them(change):
    difference, _ = compare(Codes(change), *fresh())
    assert difference < 1e-12


class Switching(nn.Module):
    def __init__(self, switch):
        super().__init__()
        self.fc, self.switch = nn.Linear(6, 6), switch

    def forward(self, x):
        self.switch(self.fc)
        return self.fc(x.clone().requires_grad_()).square().sum() + self.fc.weight.sum()


@pytest.mark.parametrize(
    "switch", [lambda fc: fc.requires_grad_(False), lambda fc: setattr(fc.bias, "requires_grad", False)]
)
def test_what_is_trained_and_switched_in_forward_is_refused_beside_pytorch(switch):
    assert is_refused_beside_pytorch(Switching(switch))


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


def pairs(x):
    """Return real numbers, and complex ones, of x [n, 6]."""
    return x[:, :3], torch.view_as_complex(x.view(-1, 3, 2))


COMPLEX = {
    "real and imaginary": lambda r, c: torch.exp(1j * r) * c - r + c * torch.arange(3),
    "products and quotients": lambda r, c: c * r / (2 + r * r) + r * c + r / (3 + c * c.conj()),
    "times alpha": lambda r, c: torch.add(c, r, alpha=2) - torch.sub(r, c, alpha=3),
    "in place": lambda r, c: (c * r).sub_(c, alpha=2).div_(3).neg_().mul_(2j).add_(r),
    "written": lambda r, c: (c * r).copy_(c * 3).masked_fill_(r > 0, 1.0),
    "cast": lambda r, c: r.to(c.dtype) * c + c.to(torch.complex64).to(c.dtype) * 0,
    "parts of others": lambda r, c: torch.complex(r, c.imag) * torch.complex(c.imag, r) * torch.complex(r, c.imag),
    "shifted": lambda r, c: torch.fft.fftshift(torch.fft.fft(c)) * r,
}


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_numbers_are_computed_with_as_in_pytorch(name):
    module = Called(lambda self, x: torch.view_as_real(COMPLEX[name](*pairs(x))) * torch.arange(1.0, 3.0))
    assert compare(module, *fresh())[0] < 1e-12


DIAGONALS = {
    "of rows": lambda x: torch.diagonal(x[:, :3]),
    "of columns": lambda x: torch.diagonal(x.t()[1:4], 1),
    "below": lambda x: torch.diagonal(x[:, 2:], -1),
    "outside": lambda x: torch.diagonal(x, -4).sum() + x,
    "of several": lambda x: torch.diagonal(x.view(2, 2, 6)[:, :, 1:4], dim1=2, dim2=0) * x[:2, :2],
    "summed": lambda x: x[:3, 1:4].trace() * x,
}


@pytest.mark.parametrize("name", DIAGONALS)
def test_a_diagonal_is_read_wherever_its_matrix_lies(name):
    assert compare(Called(lambda self, x: DIAGONALS[name](x).square()), *fresh())[0] < 1e-12


def test_memory_that_tensors_share_is_not_read_by_strides():
    with pytest.raises(GraphError, match="use slices or unfold"):
        compare(Called(lambda self, x: x[:, 1:].as_strided((3, 5), (6, 1))), *fresh())


def test_what_forward_makes_itself_has_no_gradient_to_lose():
    def shifted(self, x):
        shift = torch.empty(6, dtype=x.dtype).detach()
        shift.fill_(0.5)
        return (x + shift).square()

    assert compare(Called(shifted), *fresh())[0] < 1e-12


def test_functions_that_are_mapped_for_every_element_are_called_only_so_often():
    def mapped(self, x):
        column = x.detach()[:, 0]
        return x.square().sum() + torch.vmap(torch.vmap(torch.mul, (None, 0)), (0, None))(column, column).sum()

    assert compare(Called(mapped), *fresh())[0] < 1e-12
    with pytest.raises(GraphError, match=r"torch.vmap: nested calls run a function 400 times or more"):
        compare(Called(mapped), *fresh(20, 6))


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


@pytest.mark.parametrize("function", [turned_on_the_way, cut_in_place])
def test_what_lies_otherwise_in_place_is_a_view_from_then_on(function):
    assert compare(Called(function), *fresh())[0] < 1e-12


def other_memory(self, y):
    data = self.fc.weight.data
    data.set_((data * 0.5).contiguous())
    return y


@pytest.mark.parametrize("function", [other_memory, lambda self, y: y * self.step.t_().sum()])
def test_what_has_other_memory_or_lies_otherwise_at_every_step_is_refused(function):
    with pytest.raises(GraphError, match=r"test_never_wrong\.py:\d+: \w+_ changes a tensor's strides"):
        compare(Called(function, step=torch.randn(6, 6)), *fresh())


@pytest.mark.parametrize("ignored", [0, 5])
def test_a_mean_over_rows_of_no_weight_is_no_number(ignored):
    def function(self, y):
        labels, weight = torch.zeros(4, dtype=torch.int64), constant(0.0, 1, 2, 3, 4, 5)
        return F.cross_entropy(y, labels, weight, ignore_index=ignored, label_smoothing=0.1)

    assert compare(Called(function), *fresh())[0] < 1e-12
