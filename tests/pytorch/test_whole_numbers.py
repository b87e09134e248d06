"""Whole numbers have 32 bits in a graph: what becomes larger than that as it runs is an error, and is never cut."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from executor.data import DataError  # noqa: E402
from planner.errors import GraphError  # noqa: E402
from planner.pytorch import from_torch  # noqa: E402
from tests.pytorch.eager import imported_steps, trained_alike  # noqa: E402
from tests.pytorch.test_never_wrong import Called  # noqa: E402


def numbered(function):
    return Called(lambda self, x, numbers: (x * function(numbers)).square().mean(), width=4)


LARGE = {
    "a hash": lambda numbers: (numbers * 1000003 + 17) % 97,
    "sums": lambda numbers: (numbers * 30000).cumsum(0) % 97,
    "a product of matrices": lambda numbers: (numbers[:, None] @ numbers[None]) % 97,
    "bits": lambda numbers: (numbers << 17) % 97,
    "a cast": lambda numbers: (numbers.double() * 1e9).long() % 97,
}


@pytest.mark.parametrize("name", LARGE)
def test_numbers_of_more_than_32_bits_are_an_error(name):
    module, inputs = numbered(LARGE[name]).double(), (torch.randn(4, 4).double(), torch.arange(50000, 50004))
    graph = from_torch(module, inputs)
    with pytest.raises(DataError, match=r"integers beyond 32 bits.*x\.double\(\)"):
        imported_steps(graph, module, inputs)


def test_they_are_computed_with_in_double_precision():
    module = numbered(lambda numbers: (numbers.double() * 1000003 + 17) % 97).double()
    trained_alike(module, (torch.randn(4, 4).double(), torch.arange(50000, 50004)))


def test_examples_of_more_than_32_bits_are_refused_at_once():
    class Hashed(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(7, 4)

        def forward(self, hashes):
            return self.table(hashes % 7).square().sum()

    from_torch(Hashed(), (torch.full((8,), 2**31 - 1),))
    with pytest.raises(GraphError, match="input hashes has integers of more than 32 bits: take them modulo"):
        from_torch(Hashed(), (torch.full((8,), 2**31),))
