"""What people write of rows that masks select, of which every batch has another number unless a name says otherwise."""

import torch
import torch.nn.functional as F  # noqa: N812

ROWS, WIDTH = 5, 6


def mask():
    return torch.randperm(ROWS) < torch.randint(2, ROWS, ())


def halves():
    return torch.randperm(ROWS) < ROWS // 2


def labels():
    """Return classes of some rows, and what is no class of the others."""
    return torch.where(mask(), torch.randint(0, WIDTH, (ROWS,)), -100)


def counted(self, x, shown):
    rows = x[shown]
    each = F.mse_loss(rows, rows.detach() + 1, reduction="none").sum() / rows.shape[0]
    return each + rows.square().sum() / max(rows.numel(), 1) + (1 / rows.size(0)) * rows.sum() / (2.0 * len(x))


def counted_labels(self, x, target):
    rows, there = x[target >= 0], target[target >= 0]
    right = (rows.argmax(1) == there).sum() / there.shape[0]
    return F.cross_entropy(rows, there, reduction="sum") / rows.shape[0] + right


def counted_otherwise(self, x, shown):
    rows = x[shown]
    filled = torch.full((rows.shape[0],), rows.shape[0], dtype=x.dtype)
    return (x[: rows.shape[0]] * rows).sum() + (rows[:, 0] * filled).square().sum()


def written_at_classes(self, x, target):
    there = target >= 0
    hits = torch.full_like(x, 0.1)
    hits[there, :] = 0.2
    hits[there, target[there]] = 1
    sums = torch.zeros(WIDTH, dtype=x.dtype).scatter_add(0, target[there], x[there, 0])
    return F.binary_cross_entropy_with_logits(x, hits) + sums.square().sum()


def read_at_classes(self, x, target):
    there = target >= 0
    rows, numbers = x[there], target[there]
    near = (F.one_hot(numbers, WIDTH) * rows).square().sum() + rows.gather(1, numbers[:, None]).sum()
    return near + x[there, numbers].square().mean() + x.T[numbers, there].square().sum()


def against_others(self, x, shown, numbers):
    rows, others = x[:4][shown[:4]], x[:4][~shown[:4]]
    margin = F.relu(1 - rows + others).mean() + (torch.cat([rows, others], 1) ** 2).sum()
    return margin + F.cross_entropy(rows, numbers[:4][~shown[:4]])


def multiplied(self, x, shown):
    rows = x[shown]
    return (rows.T @ rows).square().sum()


def classes():
    return torch.randint(0, WIDTH, (ROWS,))


def half_of_four():
    return torch.cat([torch.randperm(4) < 2, torch.tensor([True])])


SELECTED = {
    "counts of chosen rows": (dict, counted, mask),
    "counts of known labels": (dict, counted_labels, labels),
    "chosen rows, counted otherwise": (dict, counted_otherwise, halves),
    "written at known classes": (dict, written_at_classes, labels),
    "read at known classes": (dict, read_at_classes, labels),
    "chosen rows against the others": (dict, against_others, half_of_four, classes),
    "products of chosen rows": (dict, multiplied, halves),
}
"""By name: what `IDIOMS` has."""
