"""A sparse constant, as a graph's edges, trains as the dense one; sparse inputs and buffers are refused."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from planner.errors import GraphError  # noqa: E402
from planner.pytorch import from_torch  # noqa: E402
from tests.pytorch.eager import trained_alike  # noqa: E402


def edges():
    return (torch.eye(9) + torch.ones(9, 9).tril(-1)).double().to_sparse()


class OfNeighbours(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.edges = nn.Linear(6, 6), None

    def forward(self, x, given=None):
        return torch.spmm(self.edges if given is None else given, self.fc(x)).square().mean()


def test_a_sparse_constant_is_dense():
    module = OfNeighbours().double()
    module.edges = edges()
    trained_alike(module, (torch.randn(9, 6).double(),))


def test_compressed_rows_are_refused():
    module = OfNeighbours().double()
    module.edges = edges().to_sparse_csr()
    with pytest.raises(GraphError, match=r"test_sparse\.py:\d+: .*a sparse CSR tensor: convert it with to_dense\(\)"):
        from_torch(module, (torch.randn(9, 6).double(),))


def test_sparse_inputs_and_buffers_are_refused():
    module, x = OfNeighbours().double(), torch.randn(9, 6).double()
    with pytest.raises(GraphError, match=r"given is sparse_coo: pass its to_dense\(\)"):
        from_torch(module, (x, edges()))
    del module.edges
    module.register_buffer("edges", edges())
    with pytest.raises(GraphError, match=r"edges is sparse_coo: .* or keep it in a plain attribute"):
        from_torch(module, (x,))
