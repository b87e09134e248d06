"""Bags of embeddings are those of PyTorch, and cost as much as the rows that they read."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from planner.pytorch import from_torch  # noqa: E402
from tests.pytorch.test_never_wrong import compare  # noqa: E402

STARTS = [0, 2, 2, 5, 9, 17]
KINDS = [
    (False, False, "sum", None),
    (False, True, "sum", 2),
    (True, False, "mean", None),
    (True, False, "mean", -1),
    (True, False, "max", 2),
    (True, True, "sum", -1),
]
"""Whether bags are a flat list, and weighted; how rows are joined, and which is left out."""


class Bags(nn.Module):
    """Six bags, of three rows each or, in a flat list, of a few."""

    def __init__(self, is_flat, is_weighted, mode, left_out):
        super().__init__()
        self.is_flat, self.table = is_flat, nn.EmbeddingBag(9, 4, mode=mode, padding_idx=left_out)
        self.shares = nn.Parameter(torch.rand(6, 3)) if is_weighted else None

    def forward(self, words):
        shares = self.shares
        if self.is_flat:
            shares = None if shares is None else shares.flatten()
            bags = self.table(words.flatten(), torch.tensor(STARTS), per_sample_weights=shares)
        else:
            bags = self.table(words, per_sample_weights=shares)
        return (bags * torch.arange(1.0, 5.0)).tanh().square().sum()


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_bags_are_those_of_pytorch(kind):
    batches = [(torch.randint(9, (6, 3)),) for _ in range(3)]
    batches[0][0][1] = 2
    batches[1][0][2] = 8
    assert compare(Bags(*kind), *batches)[0] < 1e-9


GROWING = [(False, "sum", None), (False, "max", 2), (True, "mean", None)]


@pytest.mark.parametrize(("is_flat", "mode", "left_out"), GROWING)
def test_bags_of_one_length_grow_with_what_they_read(is_flat, mode, left_out):
    def elements(count):
        words = torch.ones(count, 3, dtype=torch.long)
        given = (words.flatten(), torch.arange(0, 3 * count, 3)) if is_flat else (words,)
        module = nn.EmbeddingBag(9, 4, mode=mode, padding_idx=left_out)
        graph = from_torch(module, given, loss=lambda bags: bags.square().sum())
        return sum(tensor.elements for tensor in graph.tensors.values())

    assert elements(400) - elements(200) == elements(300) - elements(100)
