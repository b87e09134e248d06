"""What is read and written at indices, decomposed, called whole, or complex trains like eager."""

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

from planner.errors import GraphError  # noqa: E402
from planner.graph.opaque_ops import CALL  # noqa: E402
from planner.pytorch import from_torch  # noqa: E402
from tests.pytorch.eager import differences  # noqa: E402

ROWS, COLUMNS = 4, 6


class Weighted(nn.Module):
    """A function of a weight and of inputs, every element of its result weighed differently."""

    def __init__(self, function):
        super().__init__()
        self.w, self.function = nn.Parameter(torch.randn(ROWS, COLUMNS, dtype=torch.float64)), function

    def forward(self, i, j, x):
        result = self.function(self.w, i, j, x)
        return (result * torch.linspace(1, 2, result.numel(), dtype=torch.float64).view(result.shape)).sum()


def inputs():
    torch.manual_seed(0)
    i, j = torch.randint(0, ROWS, (5,)), torch.randint(0, COLUMNS, (5,))
    return [i, j, torch.randn(ROWS, COLUMNS, dtype=torch.float64)]


def assigned(w, i, j, x):
    z = w.clone()
    z[:, j[:3]] = 0.0
    z[x > 0] = 2.0
    z[1:3, 2] = 5.0
    return z


def restored(w, i, j, x):
    order = x[:, 0].argsort()
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(ROWS)
    return w[order].exp()[inverse]


def put_twice(put, numbers):
    return put.index_put((numbers,), put[numbers] * 2)


CASES = {
    "from the end": lambda w, i, j, x: w[torch.arange(ROWS), j[:ROWS] - 3],
    "put twice": lambda w, i, j, x: w.index_put((torch.tensor([1, 1, 0]),), x[:3]),
    "put over what is there": lambda w, i, j, x: x.index_put((i,), w.exp()[j % ROWS]),
    "put a number over another": lambda w, i, j, x: (w * x).index_put((i, j), w[0, 0].exp()),
    "put over what was put": lambda w, i, j, x: put_twice(w.index_put((i % 2,), w.exp()[j % ROWS]), i % 3),
    "put where it is known": lambda w, i, j, x: x.index_put((torch.tensor([1, 1, 0]),), w[:3].exp()),
    "accumulated": lambda w, i, j, x: w.index_put((i, j), w[0, 0] * x[0, :5], accumulate=True),
    "assigned": assigned,
    "restored": restored,
    "scatter over what is there": lambda w, i, j, x: (w * x).scatter(
        -1, j[:ROWS, None] % 2 * torch.ones(3).long(), w[:, :3]
    ),
    "relative shift": lambda w, i, j, x: F.pad(w, (1, 0)).view(COLUMNS + 1, ROWS)[1:].reshape(ROWS, COLUMNS),
    "truth values and one": lambda w, i, j, x: w * ((x > 0) & True) * ((x < 1) ^ True),
    "as_strided": lambda w, i, j, x: (w * 2).as_strided((3, 3), (1, 2), 1),
}


@pytest.mark.parametrize("name", CASES)
def test_trains_like_eager(name):
    module, batch = Weighted(CASES[name]), inputs()
    _, of_loss, of_parameters = differences(module, batch)
    assert of_parameters.keys() == {"w"}
    assert max(of_loss, *of_parameters.values()) < 1e-11


def written_where_chosen(w, i, j, x):
    tracked = w * 2
    tracked[i[0]] = x[0]
    return tracked


CHOSEN = {
    "read": lambda w, i, j, x: w[i[0]] * w.T[0, 0],
    "a number": lambda w, i, j, x: w[i[0].item()],
    "written": written_where_chosen,
}


@pytest.mark.parametrize("name", CHOSEN)
def test_one_place_that_data_choose_is_refused_unless_it_is_looked_up(name):
    with pytest.raises(GraphError, match=r"test_indexing\.py:\d+"):
        from_torch(Weighted(CHOSEN[name]), inputs())
    _, of_loss, _ = differences(Weighted(lambda w, i, j, x: w[i[:1]] * w[:, j[:1]].sum()), inputs())
    assert of_loss < 1e-11


def test_what_has_no_gradient_is_called_whole_and_so_is_what_has_one():
    for operand in (lambda w, x: x, lambda w, x: w):
        graph = from_torch(Weighted(lambda w, i, j, x: w * operand(w, x).kthvalue(2)[0][:, None]), inputs())  # noqa: B023
        assert "aten.kthvalue.default" in [node.attrs["target"] for node in graph.nodes if node.op == CALL]


def test_parameters_that_no_gradient_reaches_stay():
    class Router(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.layer = nn.Linear(6, 3, dtype=torch.float64), nn.Linear(6, 3, dtype=torch.float64)

        def forward(self, x):
            return F.cross_entropy(self.layer(x), self.gate(x).argmax(-1))

    _, of_loss, of_parameters = differences(Router(), [torch.randn(5, 6, dtype=torch.float64)])
    assert of_parameters.keys() == {"layer.weight", "layer.bias"}
    assert max(of_loss, *of_parameters.values()) < 1e-11
