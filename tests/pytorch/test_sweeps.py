"""A sample of the sweeps: modules drawn at random, and operators of PyTorch's own tests; none wrong, none fails."""

import os
import time
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")

from tests.pytorch import fuzz, opinfo  # noqa: E402

MODULES, SAMPLES = 12, 4
WERE_WRONG = (500486, 501110, 501399, 501742, 700544, 701195, 701794, 700778, 701350, 903243, 1200755)
"""Seeds of modules with losses that are no number, and some that rounding alone takes to either side of a kink."""

DESCRIBED = (
    "exp", "softmax", "cat", "cumsum", "pow", "maximum", "atan2", "std", "prod", "cumprod", "logcumsumexp", "cummax",
    "gather", "index_select", "index_add", "index_fill", "index_put", "scatter", "scatter_add", "masked_scatter",
    "take_along_dim", "repeat_interleave", "__getitem__", "roll", "unfold", "diff", "logit", "norm", "cov", "corrcoef",
    "cdist", "linalg.solve", "median", "fmax", "fmin", "aminmax", "lgamma", "erfc", "remainder",
    "fmod", "hypot", "nanmean", "nan_to_num", "scatter_reduce", "fft.rfft", "angle",
    *(f"nn.functional.{name}" for name in (
        "layer_norm", "relu6", "hardswish", "binary_cross_entropy", "binary_cross_entropy_with_logits", "unfold",
        "adaptive_max_pool2d", "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d",
        "adaptive_avg_pool3d", "pad.reflect", "pad.replicate", "pad.circular", "pad.constant", "interpolate.bicubic",
        "interpolate.linear", "interpolate.trilinear", "interpolate.nearest", "conv1d", "conv2d", "conv3d",
        "conv_transpose1d", "conv_transpose2d", "cosine_similarity", "kl_div", "huber_loss", "smooth_l1_loss", "prelu",
        "celu", "rrelu", "conv_transpose3d", "max_unpool2d",
    )),
)  # fmt: skip
"""Operators that sweeps are sampled from."""


@pytest.mark.parametrize("seed", [*range(MODULES), *WERE_WRONG])
def test_modules_drawn_at_random_are_right_or_refused(seed):
    kind, why, steps = fuzz.outcome(seed) or ("right", "", "")
    assert kind in ("right", "refused"), (why, steps)


@pytest.mark.parametrize("info", opinfo.described(DESCRIBED), ids=opinfo.name_of)
def test_described_operators_are_right(info):
    count = sum(1 for _ in opinfo.samples(info))
    outcomes = [(kind, why) for _, kind, why in opinfo.outcomes(info, step=-(-count // SAMPLES))]
    assert "right" in dict(outcomes)
    assert {"wrong", "bare"}.isdisjoint(dict(outcomes)), outcomes


@pytest.mark.parametrize(
    ("then", "why"), [(lambda: time.sleep(60), "over 10 s"), (lambda: os._exit(3), "its process ended with status 3")]
)
def test_an_operator_that_hangs_or_ends_its_process_is_counted(then, why, monkeypatch):
    """Samples before are; its second never returns."""
    monkeypatch.setattr(opinfo, "SECONDS", 10)
    numbers = [torch.ones(2, dtype=torch.float64, requires_grad=True), torch.ones(3, dtype=torch.float64)]
    info = SimpleNamespace(
        op=lambda x: x.square() if len(x) == 2 else then(),
        supports_autograd=True,
        sample_inputs=lambda *_, **__: map(opinfo.SampleInput, numbers),
    )
    assert list(opinfo.outcomes_apart(info)) == [(0, "right", ""), (1, "no result", why)]
