"""What is said of operators that few modules have where the package of them is not installed."""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

from planner.errors import GraphError  # noqa: E402
from planner.pytorch import from_torch, nodes  # noqa: E402
from planner.pytorch.user_model import UserModel  # noqa: E402
from tests.launcher import in_one_line  # noqa: E402
from tests.pytorch.idioms import IDIOMS, case  # noqa: E402
from tests.pytorch.outcomes import outcome_of, sgd  # noqa: E402
from tests.pytorch.test_never_wrong import Called  # noqa: E402

ROWS, WIDTH = 4, 6


@pytest.fixture
def alone(monkeypatch):
    """The import without other packages."""
    monkeypatch.setattr(nodes, "_entries", lambda: ())
    nodes.extension.cache_clear()
    nodes.folders.cache_clear()
    yield
    nodes.extension.cache_clear()
    nodes.folders.cache_clear()


def packed(self, x, words, lengths):
    rows = nn.utils.rnn.pack_padded_sequence(x.expand(3, ROWS, WIDTH), lengths, enforce_sorted=False)
    return nn.utils.rnn.pad_packed_sequence(self.lstm(rows)[0])[0]


def labels(self, x, words, lengths):
    rows = x.expand(5, ROWS, WIDTH).log_softmax(-1)
    return F.ctc_loss(rows, words, torch.full_like(lengths, 5), lengths)


RARE = {
    "a median": lambda self, x, words, lengths: x.median(1)[0],
    "running statistics": lambda self, x, words, lengths: self.norm(x.view(ROWS, 3, 2)),
    "a product": lambda self, x, words, lengths: x.cumprod(1),
    "an activation": lambda self, x, words, lengths: F.celu(x),
    "a transform": lambda self, x, words, lengths: torch.fft.rfft(x).abs(),
    "complex": lambda self, x, words, lengths: torch.polar(x, x).imag,
    "a maximum": lambda self, x, words, lengths: F.adaptive_max_pool1d(x, 2),
    "counts": lambda self, x, words, lengths: x.sum() * torch.bincount(lengths, minlength=5),
    "alike": lambda self, x, words, lengths: F.mse_loss(x[lengths > 1].tanh(), x[lengths > 1].detach()),
    "mapped": lambda self, x, words, lengths: torch.vmap(lambda row: row.square().sum())(x),
    "packed sequences": packed,
    "sequences of labels": labels,
}


def model_of(function):
    module, words = Called(function), torch.randint(1, WIDTH, (ROWS, 3))
    module.lstm, module.norm = nn.LSTM(WIDTH, WIDTH), nn.InstanceNorm1d(3, track_running_stats=True)
    module = module.double()
    return UserModel(
        module, (torch.randn(ROWS, WIDTH).double(), words, torch.tensor([3, 1, 2, 3])), None, (), sgd(module)
    )


@pytest.mark.parametrize("function", RARE.values(), ids=RARE)
def test_one_line_names_the_package(function, alone):
    with in_one_line(GraphError, "pip install extras/rare_operators"):
        from_torch(*model_of(function)[:2])


READ = r"\S+test_never_wrong\.py:\d+: turn is complex; .*pip install"
HELD = {nn.Buffer: READ, torch.clone: READ, nn.Parameter: "parameter turn is complex: store its real and imaginary"}


@pytest.mark.parametrize("hold", HELD)
def test_one_line_names_a_complex_tensor_that_is_read(hold, alone):
    module, inputs, *_ = model_of(lambda self, x, words, lengths: torch.view_as_real(self.turn)[:, 0] * x)
    module.turn = hold(torch.ones(WIDTH, dtype=torch.cfloat))
    with pytest.raises(GraphError, match=f"^{HELD[hold]}"):
        from_torch(module, inputs)


def test_a_complex_buffer_that_nothing_reads_is_taken(alone):
    module, inputs, *_ = model_of(lambda self, x, words, lengths: x)
    module.turn = nn.Buffer(torch.ones(WIDTH, dtype=torch.cfloat))
    assert "turn" not in from_torch(module, inputs).tensors


@pytest.mark.parametrize("name", list(IDIOMS)[::8])
def test_without_the_package_nothing_is_wrong(name, alone):
    module, (batch, *_) = case(name, 1)
    kind, why = outcome_of(UserModel(module, batch, None, (), sgd(module))) or ("right", "")
    assert kind in ("right", "refused"), why
