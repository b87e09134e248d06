"""A module may check a number that data decide, as how many places are marked, and is imported as without the check."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from planner.pytorch import from_torch  # noqa: E402

MARK, WIDTH = 1, 8


class Marked(nn.Module):
    """Puts features of images where tokens are marked, as language models with images do."""

    def __init__(self, checks):
        super().__init__()
        self.checks = checks
        self.table, self.image, self.out = nn.Embedding(10, WIDTH), nn.Linear(4, WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, words, images):
        x, features, is_marked = self.table(words), self.image(images).float(), words == MARK
        if self.checks:
            torch._check((is_marked.sum() * WIDTH == features.numel()).item())
        return self.out(x.masked_scatter(is_marked[..., None], features)).square().mean()


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_a_check_changes_nothing(autocast):
    examples = torch.full((4, 6), MARK), torch.zeros(4, 6, 4)
    plain, checked = (from_torch(Marked(checks), examples, autocast=autocast) for checks in (False, True))
    assert [(node.op, node.attrs) for node in checked.nodes] == [(node.op, node.attrs) for node in plain.nodes]
