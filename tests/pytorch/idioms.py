"""What people write in modules, each small: what a module has, what it does with a layer's result, and other data."""

from types import SimpleNamespace

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.pytorch.selected import ROWS, SELECTED, WIDTH, classes


class Idiom(nn.Module):
    """A linear layer, parts of its own, and a function of the layer's result and other data, which is the loss."""

    def __init__(self, function, parts):
        super().__init__()
        self.fc, self.function = nn.Linear(WIDTH, WIDTH), function
        for name, part in parts().items():
            if isinstance(part, nn.Module | nn.Parameter):
                setattr(self, name, part)
            else:
                self.register_buffer(name, part)

    def forward(self, x, *others):
        return self.function(self, self.fc(x), *others)


def mask():
    return torch.rand(ROWS) > 0.4


def lengths():
    return torch.tensor([4, 2, 3, 1, 4])[torch.randperm(ROWS)]


def sequences():
    return torch.randn(ROWS, 4, WIDTH)


def mean_square(x):
    return x.square().mean()


def experts():
    return {"gate": nn.Linear(WIDTH, 3), "experts": nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))}


def routed_by_mask(self, x):
    weights, chosen = self.gate(x).softmax(-1).topk(2)
    result = torch.zeros_like(x)
    for number, expert in enumerate(self.experts):
        rows = (chosen == number).any(-1)
        share = (weights * (chosen == number)).sum(-1)
        result[rows] += share[rows].unsqueeze(-1) * expert(x[rows])
    return mean_square(result)


def routed_by_numbers(self, x):
    weights, chosen = self.gate(x).softmax(-1).topk(2)
    result = torch.zeros_like(x)
    for number, expert in enumerate(self.experts):
        rows, place = torch.where(chosen == number)
        result.index_add_(0, rows, expert(x[rows]) * weights[rows, place, None])
        result[rows] += 0.1 * expert(x[rows])
    return mean_square(result)


def hidden_words(self, x, shown, target):
    right = (x[shown].argmax(-1) == target[shown]).float().mean()
    return F.cross_entropy(x[shown], target[shown]) + F.mse_loss(x[shown].tanh(), x[shown].detach()) + 0 * right


def chosen(self, x, shown):
    return mean_square(torch.where(shown[:, None], x, 1)) + x[shown].sum()


def chosen_alike(self, x, shown):
    first, fewer, others = x[:, 0], torch.roll(x.detach(), 1) + 1, ~shown
    result = F.mse_loss(x[~shown], fewer[~shown]) + F.l1_loss(x[shown & (first < 9)], fewer[shown & (first < 9)])
    shown = ~others
    shown[:2] = ~shown[:2]
    return result + x[~shown].sum() * 2 + x[others].sum() * 3


def downward(self, x):
    return mean_square(self.down(x))


def expanded(self, x):
    repeated = x.unsqueeze(1).expand(-1, 3, -1)
    return repeated.std((1, 2)).sum() + repeated.var((0, 1)).sum() + mean_square(F.layer_norm(repeated, (3, WIDTH)))


def packed(self, x, batch, ends):
    rows = pack_padded_sequence(self.fc(batch), ends, batch_first=True, enforce_sorted=False)
    outputs, (hidden, cell) = self.lstm(rows)
    padded, _ = pad_packed_sequence(outputs, batch_first=True)
    return mean_square(padded) + hidden.sum() + mean_square(cell) + mean_square(x)


def exponential_average(self, x):
    with torch.no_grad():
        self.average.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
    return mean_square(x - self.average)


def assigned(self, x):
    self.average = 0.9 * self.average + 0.1 * x.detach().mean(0)
    self.steps += 1
    return mean_square(x - self.average) / self.steps


def swapped(self, x):
    self.now, self.before = self.before + x.mean(0).detach(), self.now
    return mean_square(x * self.now - self.before)


def codebook(self, x):
    chosen = torch.cdist(x, self.codes).argmin(1)
    hits = F.one_hot(chosen, len(self.codes)).to(x.dtype)
    self.counts.data.mul_(0.9).add_(hits.sum(0), alpha=0.1)
    self.sums.data.mul_(0.9).add_(hits.t() @ x.detach(), alpha=0.1)
    self.codes.data.copy_(self.sums / (self.counts + 1e-5).unsqueeze(1))
    return mean_square(x + (F.embedding(chosen, self.codes) - x).detach()) + F.mse_loss(x, self.codes[chosen])


def queue(self, x):
    result = mean_square(x @ self.keys.clone().detach())
    with torch.no_grad():
        self.keys.copy_(torch.cat([self.keys[:, ROWS:], x.T], 1))
    return result


def slow():
    layer = nn.Linear(WIDTH, WIDTH)
    return {"slow": layer.requires_grad_(False)}


def gaussian(self, x):
    return -torch.distributions.Normal(x, torch.ones_like(x)).log_prob(x.detach() + 1).mean() + F.gaussian_nll_loss(
        x, x.detach() * 2, x.exp()
    )


def policy(self, x, actions):
    chosen = torch.distributions.Categorical(logits=x)
    return -chosen.log_prob(actions).mean() - 0.01 * chosen.entropy().mean()


def below_the_diagonal(self, x):
    products = x @ x.T
    products.fill_diagonal_(float("-inf"))
    return F.cross_entropy(products, torch.arange(ROWS).roll(1))


def changed_through_rows(self, x):
    products = x @ x.T
    products[:, 1:].T.reshape(-1).mul_(2)  # a copy
    products.view(ROWS, 1, ROWS)[2:].flatten(0, 1).mul_(3)  # a view
    return products.square().sum()


def changed_in_chains(self, x):
    y = x * 1
    first = y[:, 0]
    first.mul_(2).add_(1)
    first[1:].mul_(3).add_(first[0])
    return mean_square(y) + first.sum()


def filtered(self, x):
    weight = torch.view_as_complex(self.weight)
    spectrum = torch.fft.rfft(x, norm="ortho")
    kept = torch.zeros_like(spectrum)
    kept[:, :2] = spectrum[:, :2] * weight
    return mean_square(torch.fft.irfft(kept, n=WIDTH, norm="ortho")) + mean_square(torch.fft.fft2(x).real)


def of_matrices(self, x):
    matrix = x @ x.T + torch.eye(ROWS)
    return torch.linalg.slogdet(matrix)[1] + torch.linalg.solve(matrix, x).sum() + x.median(1)[0].sum()


def volume(self, x):
    v = x.view(1, 1, ROWS, 1, WIDTH).expand(1, 2, ROWS, 4, WIDTH)
    pooled = F.avg_pool3d(v, 2, 1, 1, count_include_pad=False)
    return mean_square(F.max_pool3d(self.up(pooled), 3, 2, 1)) + F.adaptive_max_pool2d(v[:, :, 0], (3, 4)).sum()


def written_without_gradients(self, x):
    with torch.no_grad():
        self.average[:2].copy_(x.mean(0)[:2])
        self.average[2:] = x[0, 2:]
    return mean_square(2 * x - self.average)


def followed(self, x):
    with torch.no_grad():
        torch._foreach_lerp_(list(self.slow.parameters()), list(self.fc.parameters()), 0.1)
        self.slow.bias.mul_(0.9).add_(self.fc.bias, alpha=0.1)
    return F.mse_loss(x, self.slow(x.detach())) + mean_square(x - self.slow.bias)


def spectrogram(self, x):
    window = torch.hann_window(4, dtype=x.dtype)
    return mean_square(torch.stft(x.flatten(), 6, 2, 4, window, return_complex=True).abs() + 1)


def phases(self, x):
    transform = torch.fft.rfft(x)  # whose first and last are real
    return (torch.angle(transform) * transform.abs() * torch.arange(1, 5)).sum() + torch.angle(torch.fft.fft(x)).sum()


IDIOMS = {
    "experts by masks": (experts, routed_by_mask),
    "experts by numbers": (experts, routed_by_numbers),
    "hidden words": (dict, hidden_words, mask, classes),
    "chosen by a mask": (dict, chosen, mask),
    "chosen by masks alike": (dict, chosen_alike, mask),
    "packed sequences": (
        lambda: {"lstm": nn.LSTM(WIDTH, 3, batch_first=True, bidirectional=True)}, packed, sequences, lengths,
    ),
    "an average": (lambda: {"average": torch.zeros(WIDTH)}, exponential_average),
    "assigned": (lambda: {"average": torch.zeros(WIDTH), "steps": torch.tensor(0)}, assigned),
    "swapped": (lambda: {"now": torch.ones(WIDTH), "before": torch.zeros(WIDTH)}, swapped),
    "a codebook": (
        lambda: {"codes": torch.randn(4, WIDTH), "counts": torch.ones(4), "sums": torch.randn(4, WIDTH)}, codebook,
    ),
    "a queue": (lambda: {"keys": torch.randn(WIDTH, 2 * ROWS)}, queue),
    "spectral norm": (
        lambda: {"down": nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, 3))}, downward,
    ),
    "spectral norm by hooks": (
        lambda: {"down": nn.utils.spectral_norm(nn.Linear(WIDTH, 3))}, downward,
    ),
    "distributions": (dict, gaussian),
    "a policy": (dict, policy, classes),
    "below the diagonal": (dict, below_the_diagonal),
    "changed through rows": (dict, changed_through_rows),
    "chains": (dict, changed_in_chains),
    "a filter": (lambda: {"weight": nn.Parameter(torch.randn(2, 2))}, filtered),
    "matrices": (dict, of_matrices),
    "volumes": (lambda: {"up": nn.ConvTranspose3d(2, 2, 3, stride=2, padding=1, output_padding=1, groups=2)}, volume),
    "expanded": (dict, expanded),
    "written without gradients": (lambda: {"average": torch.zeros(WIDTH)}, written_without_gradients),
    "a followed encoder": (slow, followed),
    "frequencies of words": (
        lambda: {"words": nn.Embedding(WIDTH, WIDTH, padding_idx=-1, scale_grad_by_freq=True)},
        lambda self, x, numbers: mean_square(x + self.words(numbers)), classes,
    ),
    "a sparse matrix": (
        dict,
        lambda self, x, i, j: mean_square(
            torch.sparse.mm(torch.sparse_coo_tensor(torch.stack((i, j)), x[:, 0].detach(), (WIDTH, WIDTH)), x.T)
        ), classes, classes,
    ),
    "a spectrogram": (dict, spectrogram),
    "phases": (dict, phases),
    "results in an object": (dict, lambda self, x: SimpleNamespace(loss=mean_square(x))),
    "a mapped function": (dict, lambda self, x: mean_square(torch.vmap(torch.outer, (0, None), 1)(x, x[0]))),
    **SELECTED,
    "deviations of equals": (dict, lambda self, x: (x[:1].expand(ROWS, -1) * 1.0).std(0).sum() + mean_square(x)),
}  # fmt: skip
"""By name: the module's parts, its function, and what makes other data of a batch."""


def case(name, steps):
    """Return a module in double precision, and a batch for every step."""
    torch.manual_seed(3)
    parts, function, *others = IDIOMS[name]
    module = Idiom(function, parts).double()
    batches = [(torch.randn(ROWS, WIDTH), *(other() for other in others)) for _ in range(steps)]
    return module, [
        tuple(tensor.double() if tensor.is_floating_point() else tensor for tensor in batch) for batch in batches
    ]
