"""What a mask selects: as many elements as in the example, in every batch."""

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from executor.data import DataError  # noqa: E402
from executor.torch.batches import Batch  # noqa: E402
from planner.errors import GraphError  # noqa: E402
from planner.pytorch import from_torch  # noqa: E402
from tests.pytorch.eager import trained_alike, trainer_of  # noqa: E402

END = 2


class Selected(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.words, self.head, self.function = nn.Embedding(10, 8), nn.Linear(8, 8), function

    def forward(self, words):
        return self.function(self, self.words(words), words == END).square().sum()


def last(self, rows, mask):
    selected = rows[mask, :]
    torch._check(selected.shape[0] // 4 >= 1)
    return self.head(selected.view(4, -1, 8)[:, -1])


def written(self, rows, mask):
    result = torch.zeros_like(rows)
    result[mask] = self.head(rows[mask])
    return result * rows


FUNCTIONS = {
    "last": last,
    "written": written,
    "where": lambda self, rows, mask: self.head(rows[torch.where(mask)]),
    "nonzero": lambda self, rows, mask: self.head(rows.flatten(0, 1)[mask.flatten().nonzero()[:, 0]]),
    "masked_select": lambda self, rows, mask: self.head(rows)[..., 0].masked_select(mask),
}


def words():
    result = torch.randint(3, 10, (4, 6))
    result[:, 4] = END
    return result


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_what_is_selected_trains_like_eager(function):
    trained_alike(Selected(function), (words(),))


def test_a_batch_that_selects_another_number_is_an_error():
    module, batch = Selected(last), words()
    graph = from_torch(module, (batch,))
    trainer = trainer_of(graph, module)
    batch[0, 0] = END
    trainer.load(Batch(graph, module, (batch,), ()), 0)
    with pytest.raises(DataError, match=r"shape \(5, 2\) in this batch, \(4, 2\) in the example"):
        trainer.run()


def test_what_parameters_select_is_refused():
    with pytest.raises(GraphError, match=r"result depends on data .*selection by a mask\): use torch\.where"):
        from_torch(Selected(lambda self, rows, mask: rows[rows > 0].cumsum(0)), (words(),))
