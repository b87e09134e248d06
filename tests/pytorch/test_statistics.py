"""Operators of image models, each with the attributes that it is used with, beside PyTorch for three steps."""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

from planner.errors import GraphError  # noqa: E402
from planner.graph import Optimizer  # noqa: E402
from planner.pytorch import from_torch  # noqa: E402
from tests.pytorch.eager import imported_steps, trained_alike  # noqa: E402

IMAGE, SEQUENCE, VOLUME = (2, 4, 7, 9), (2, 4, 11), (2, 4, 5, 6, 7)

OF_SHAPE = {
    IMAGE: {
        "max pooling, ceil_mode": lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
        "max pooling, dilated": lambda x: F.max_pool2d(x, (3, 2), 2, 1, dilation=(2, 3), ceil_mode=True),
        "max pooling to one": lambda x: F.adaptive_max_pool2d(x, 1),
        "average pooling, ceil_mode": lambda x: F.avg_pool2d(x, 2, 2, ceil_mode=True),
        "average pooling, padding not counted": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        "average pooling, all at once": lambda x: F.avg_pool2d(x, (4, 3), (3, 2), (2, 1), True, False),
        "average pooling, beyond the image": lambda x: F.avg_pool2d(x, 50, ceil_mode=True),
        "average pooling, divisor": lambda x: F.avg_pool2d(x, 3, 2, 1, True, True, 5),
        "adaptive pooling, windows that overlap": lambda x: F.adaptive_avg_pool2d(x, (3, 4)),
        "adaptive pooling of rows": lambda x: F.adaptive_avg_pool2d(x, (None, 1)),
        "unfold": lambda x: F.unfold(x, (3, 2), dilation=(1, 2), padding=(1, 0), stride=2),
        "fold": lambda x: F.fold(F.unfold(x, 3, padding=1, stride=2) * 2, (7, 9), 3, padding=1, stride=2),
        "windows that overlap": lambda x: x.unfold(2, 3, 2).unfold(3, 4, 2),
        "windows side by side": lambda x: x.unfold(3, 3, 3),
        "reflected": lambda x: F.pad(x, (2, 3, 1, 0), mode="reflect"),
        "replicated": lambda x: F.pad(x, (2, 1, 0, 2), mode="replicate"),
        "circular": lambda x: F.pad(x, (1, 2, 3, 0), mode="circular"),
        "cropped and padded": lambda x: F.pad(x, (-2, 1, 1, -3), value=0.5),
        "rolled": lambda x: x.roll(5),
        "smooth bicubic": lambda x: F.interpolate(x, (4, 5), mode="bicubic", antialias=True),
        "smooth bilinear": lambda x: F.interpolate(x, (5, 12), mode="bilinear", antialias=True),
        "nearest exact": lambda x: F.interpolate(x, (5, 12), mode="nearest-exact"),
        "bilinear by a factor": lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"),
    },
    SEQUENCE: {
        "average pooling of sequences": lambda x: F.avg_pool1d(x, 3, 2, 1, True, False),
        "adaptive pooling of sequences": lambda x: F.adaptive_avg_pool1d(x, 4),
        "linear": lambda x: F.interpolate(x, 7, mode="linear"),
        "nearest of sequences": lambda x: F.interpolate(x, scale_factor=3),
    },
    VOLUME: {
        "adaptive pooling of volumes": lambda x: F.adaptive_avg_pool3d(x, (2, 3, 1)),
        "trilinear": lambda x: F.interpolate(x, (3, 7, 9), mode="trilinear", align_corners=True),
        "nearest of volumes": lambda x: F.interpolate(x, scale_factor=2),
    },
}
LAYERS = {
    "same padding, even kernel": (nn.Conv2d(4, 6, (2, 4), padding="same", dilation=(1, 2)), IMAGE),
    "same padding of sequences": (nn.Conv1d(4, 6, 4, padding="same"), SEQUENCE),
    "circular padding": (nn.Conv2d(4, 6, 3, padding=2, padding_mode="circular", stride=2), IMAGE),
    "transposed in groups": (nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2, dilation=(1, 2)), IMAGE),
    "transposed of sequences": (nn.ConvTranspose1d(4, 6, 4, 3, output_padding=2), SEQUENCE),
    "of volumes": (nn.Conv3d(4, 6, (2, 3, 2), (2, 1, 2), (1, 0, 1), dilation=(1, 2, 1), groups=2), VOLUME),
    "of volumes, patches": (nn.Conv3d(4, 6, 2, 2, bias=False), VOLUME),
    "normalized elements": (nn.Sequential(nn.LayerNorm(1), nn.Linear(1, 3)), (2, 4, 7, 1)),
    "normalized volumes": (nn.BatchNorm3d(4), VOLUME),
}


class Scaled(nn.Module):
    """A function or a layer of images with a weight for every channel; returns the mean of a nonlinear function."""

    def __init__(self, function, rank):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 2, 4).view(4, *(1,) * (rank - 2)))
        self.function = function

    def forward(self, x):
        return self.function(x * self.weight).sin().mean()


CASES = [(name, function, shape) for shape, named in OF_SHAPE.items() for name, function in named.items()]
CASES += [(name, layer, shape) for name, (layer, shape) in LAYERS.items()]


@pytest.mark.parametrize(("function", "shape"), [pytest.param(*rest, id=name) for name, *rest in CASES])
def test_a_function_of_images_is_pytorchs(function, shape):
    trained_alike(Scaled(function, len(shape)), [torch.randn(shape).double()], of_tensors=1e-10)


class NormalizedTwice(nn.Module):
    """One batch normalization of two layers."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.norm = nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x):
        return self.norm(self.second(self.norm(self.first(x)).relu())).square().mean()


def test_a_normalization_called_twice_follows_both():
    graph = trained_alike(NormalizedTwice(), [torch.randn(IMAGE).double()], of_tensors=1e-10)
    assert {"norm.running_mean", "norm.running_var"} <= graph.updates.keys()


class Normalized(nn.Module):
    """What a function makes of a batch norm and a batch."""

    def __init__(self, function, norm):
        super().__init__()
        self.conv, self.norm, self.function = nn.Conv2d(4, 4, 1), norm, function

    def forward(self, x):
        return self.function(self.norm, self.conv(x)).sin().mean()


def reset(norm, x):
    norm.running_mean.mul_(0.5)
    return norm(x)


def in_evaluation(norm, x):
    return norm(x) + F.batch_norm(x, norm.running_mean, norm.running_var)


def in_a_row(norm, x):
    statistics = torch.stack([norm.running_mean, norm.running_var])
    return F.batch_norm(x, *statistics.unbind(), training=True)


def native(norm, x):
    return torch.native_batch_norm(x, None, None, norm.running_mean, norm.running_var, True, 0.1, 1e-5)[0]


FOLLOWED = {
    "after": (lambda norm, x: norm(x) * norm.running_var.view(-1, 1, 1), "mul|view"),
    "before": (lambda norm, x: norm.running_mean.add(1).view(-1, 1, 1) * norm(x), "add"),
    "in evaluation": (in_evaluation, "batch_norm"),
    "changed": (reset, "batch_norm"),
    "views": (in_a_row, "batch_norm"),
    "natively": (native, "native_batch_norm"),
}


@pytest.mark.parametrize(("function", "by"), FOLLOWED.values(), ids=FOLLOWED)
def test_running_statistics_that_others_read_or_change_are_refused(function, by):
    module = Normalized(function, nn.BatchNorm2d(4))
    with pytest.raises(GraphError, match=rf"^tests/pytorch/test_images\.py:\d+: ({by}) .*buffer"):
        from_torch(module, [torch.randn(IMAGE)])


def test_running_statistics_follow_the_samples_that_instance_norm_normalizes():
    norm = nn.InstanceNorm2d(4, affine=True, track_running_stats=True, momentum=0.3)
    module = Normalized(lambda norm, x: norm(x) + norm.running_var.view(-1, 1, 1), norm).double()
    graph = trained_alike(module, [torch.randn(IMAGE).double()], of_tensors=1e-10)
    assert {"norm.running_mean", "norm.running_var"} <= graph.updates.keys()


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weights", [{}, {"pos_weight": 9}, {"weight": 9}, {"weight": 9, "pos_weight": 9}])
def test_binary_cross_entropy_of_logits_is_pytorchs(reduction, weights):
    given = {name: torch.rand(extent).double() for name, extent in weights.items()}
    target = torch.rand(IMAGE).double()

    def loss(x):
        return F.binary_cross_entropy_with_logits(x, target, **given, reduction=reduction) / 100

    trained_alike(Scaled(loss, 4), [torch.randn(IMAGE).double()], of_tensors=1e-10)


class Random(nn.Module):
    """The mean of a function of numbers that are drawn anew in every step."""

    def __init__(self, function):
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.ones(1)), function

    def forward(self, x):
        return (self.function(x) * self.weight.clamp(1, 1)).mean()


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (torch.rand_like, 0.5),
        (lambda x: torch.rand(64, 64).to(x) + torch.rand(64, 1).to(x), 1.0),
        (lambda x: torch.randn_like(x).square(), 1.0),
        (lambda x: torch.empty_like(x).uniform_(2, 4), 3.0),
        (lambda x: torch.empty_like(x).normal_(3, 2).sub(3).square(), 4.0),
        (lambda x: torch.randint(2, 5, x.shape).to(x) + x[torch.randperm(64)], 3.0),
    ],
)
def test_numbers_are_drawn_anew_in_every_step(function, expected):
    module, inputs = Random(function).double(), [torch.zeros(64, 64).double()]
    losses, _ = imported_steps(from_torch(module, inputs, optimizer=Optimizer("sgd", lr=0.0)), module, inputs)
    assert losses == pytest.approx([expected] * len(losses), rel=0.1)
    assert len(set(losses)) == len(losses)
