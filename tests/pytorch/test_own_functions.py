"""A `torch.autograd.Function` trains as in PyTorch: with the gradient that its author wrote, whatever that is."""

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.autograd.function import once_differentiable  # noqa: E402

import planner  # noqa: E402
from executor.check import relative_difference  # noqa: E402
from planner.errors import GraphError  # noqa: E402
from planner.graph import Optimizer  # noqa: E402
from planner.graph.repeats import few_segments  # noqa: E402
from planner.pytorch import from_torch  # noqa: E402
from tensor_partitioner.replicas import in_two_micro_batches  # noqa: E402
from tests.pytorch.eager import RATE, imported_steps, trained_alike  # noqa: E402


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return 2 * x

    @staticmethod
    def backward(context, gradient):
        return gradient


class Several(torch.autograd.Function):
    """Several operands and results, of which one is a whole number; what is needed alone gets a gradient."""

    @staticmethod
    def forward(context, x, y, factor):
        context.save_for_backward(x, y)
        context.factor = factor
        return x * y * factor, x.argmax(-1), x + y

    @staticmethod
    def backward(context, gradient, of_place, of_sum):
        x, y = context.saved_variables  # what saved_tensors were called
        assert of_place is not None
        of_y = (gradient * x).sum(0, keepdim=True) if context.needs_input_grad[1] else None
        return gradient * y * context.factor * 3 + of_sum, of_y, None


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(x, factor=2):
        return x.round() * factor

    @staticmethod
    def setup_context(context, inputs, output):
        context.save_for_backward(output)
        context.factor = inputs[1]

    @staticmethod
    @once_differentiable
    def backward(context, gradient):
        (output,) = context.saved_tensors
        return gradient.sign() * context.factor + output, None


class Constant(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return torch.ones(3, dtype=x.dtype)

    @staticmethod
    def backward(context, gradient):
        return gradient.sum().expand(4, 6)


class PartWithout(torch.autograd.Function):
    """Two results, of which one has no gradient, and whose gradient is none, or zeros."""

    @staticmethod
    def forward(context, x, makes_zeros):
        context.set_materialize_grads(makes_zeros)
        first, second = x.sin(), x.cos()
        context.mark_non_differentiable(second)
        return first, second

    @staticmethod
    def backward(context, of_first, of_second):
        return of_first * 2 if of_second is None else of_first * 3 + of_second, None


class WithoutGradient(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.sin()

    @staticmethod
    def backward(context, gradient):
        return None


doubled = Doubled.apply


def several(module, x):
    product, place, total = Several.apply(x, module.v, 0.5)
    return module.b(product) * place[:, None] + total


def with_data(module, x):
    product, _, total = Several.apply(x, torch.arange(6.0).to(x), 0.5)
    return module.b(product) + total


def without_gradients(module, x):
    with torch.no_grad():
        scale = doubled(x).abs()
    return scale * x


FUNCTIONS = {
    "through views": lambda module, x: doubled(x.t()).view(3, 2, 4).sum(1) @ module.b(x),
    "of its context": lambda module, x: Rounded.apply(module.b(x)) + x,
    "a constant": lambda module, x: Constant.apply(x).sum() * x,
    "no gradient": lambda module, x: WithoutGradient.apply(x) * x,
    "a part without one": lambda module, x: torch.addcmul(x, *PartWithout.apply(module.b(x), True)),
    "a part with none": lambda module, x: torch.addcmul(x, *PartWithout.apply(module.b(x), False)),
    "of a parameter": lambda module, x: doubled(module.v) * x,
    "several": several,
    "with data": with_data,
    "without gradients": without_gradients,
}


class Called(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.a, self.b, self.function = nn.Linear(6, 6), nn.Linear(6, 6), function
        self.v = nn.Parameter(torch.randn(6))

    def forward(self, x):
        return self.function(self, self.a(x)).square().mean()


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_trains_with_the_gradient_that_was_written(function):
    graph = trained_alike(Called(function), (torch.randn(4, 6).double(),), of_tensors=1e-11)
    assert planner.plan(graph, workers=2).total_bytes >= 0


def test_micro_batches_of_a_function_whose_gradient_was_written_and_of_means():
    module, rows = Called(lambda module, x: several(module, x) + x.mean()).double(), torch.randn(8, 6).double()
    graph = from_torch(module, (rows[:4],), optimizer=Optimizer("sgd", lr=RATE), micro_batches=2)
    _, ours = imported_steps(graph, module, (rows,), steps=1)
    for half in rows.split(4):
        (module(half) / 2).backward()
    torch.optim.SGD(module.parameters(), lr=RATE).step()
    for name, parameter in module.named_parameters():
        assert relative_difference(ours[name], parameter.detach().numpy()) < 1e-12


def of_the_largest(x, gradient):
    values, places = torch.topk(x, 3, -1)
    return torch.zeros_like(x).scatter(-1, places, gradient.gather(-1, places) * values)


def sine(gradient_of):
    class Sine(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            context.save_for_backward(x)
            return torch.sin(x)

        @staticmethod
        def backward(context, gradient):
            return gradient_of(context.saved_tensors[0], gradient)

    return Sine.apply


def test_what_other_nodes_read_of_a_gradient_stays_in_the_forward_pass():
    module = Called(lambda _, x: sine(of_the_largest)(x))
    trained_alike(module, (torch.randn(4, 6).double(),), of_tensors=1e-11)


def in_place(module, x):
    module.kept.data.mul_(x.mean())


def replaced(module, x):
    module.kept = module.kept * x.mean()


HELD = [(nn.Buffer, in_place), (nn.Parameter, in_place), (torch.clone, in_place), (torch.clone, replaced)]


@pytest.mark.parametrize(("hold", "change"), HELD)
def test_a_gradient_that_changes_a_tensor_of_the_module_is_refused(hold, change):
    module = Called(lambda module, x: sine(module.noted)(x) * module.a.kept)
    module.a.kept = hold(torch.ones(()))
    module.noted = lambda x, gradient: (change(module.a, x), gradient * torch.cos(x))[1]
    with pytest.raises(GraphError, match=r"Sine, a torch\.autograd\.Function, stores or changes a tensor"):
        from_torch(module, (torch.randn(4, 6),))


def test_a_gradient_may_read_a_tensor_that_the_forward_pass_changes():
    def change_first(module, x):
        module.kept.data.mul_(0.9)
        return sine(lambda x, gradient: gradient * torch.cos(x) * module.kept)(x) * module.kept

    module = Called(change_first)
    module.kept = nn.Buffer(torch.ones(()))
    trained_alike(module, (torch.randn(4, 6).double(),), of_tensors=1e-11)


class Layer(nn.Module):
    """A layer whose activation's gradient computes from the operand again what it needs, as BLOOM's does."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return x + sine(lambda x, gradient: gradient * (1 - torch.sin(x) ** 2))(self.linear(x))


def test_what_a_gradient_computes_again_belongs_to_the_backward_pass_of_its_layer():
    module, inputs = nn.Sequential(*(Layer() for _ in range(6))), torch.randn(4, 8)
    targets, loss = torch.randn(4, 8), nn.functional.mse_loss
    graph = from_torch(module, (inputs,), loss=loss, targets=(targets,), optimizer=Optimizer("sgd", lr=RATE))
    assert sum(node.op == "sin" for node in graph.nodes if node.forward is None) == 6
    assert sum(node.op == "sin" for node in graph.nodes if node.forward is not None) == 6
    assert few_segments(in_two_micro_batches(graph))[1] == (6,)
