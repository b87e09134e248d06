"""A sample of the sweeps: modules drawn at random, and operators of PyTorch's own tests; none wrong, none fails."""

import os
import time
from itertools import islice
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")

from tests.pytorch import fuzz, opinfo  # noqa: E402

MODULES, SAMPLES = 12, 3
WERE_WRONG = (500486, 501110, 501399, 501742, 700544, 701195, 701794, 700778, 701350, 903243, 1200755)
"""Seeds of modules with losses that are no number, and some that rounding alone takes to either side of a kink."""

DESCRIBED = (
    "exp", "softmax", "cat", "gather", "cumsum", "pow", "maximum", "atan2", "std", "nn.functional.layer_norm",
    "nn.functional.relu6", "nn.functional.hardswish", "nn.functional.binary_cross_entropy", "index_select",
)  # fmt: skip


@pytest.mark.parametrize("seed", [*range(MODULES), *WERE_WRONG])
def test_modules_drawn_at_random_are_right_or_refused(seed):
    kind, why, steps = fuzz.outcome(seed) or ("right", "", "")
    assert kind in ("right", "refused"), (why, steps)


@pytest.mark.parametrize("info", opinfo.described(DESCRIBED), ids=opinfo.name_of)
def test_described_operators_are_right(info):
    kinds = [kind for _, kind, _ in islice(opinfo.outcomes(info), 2 * SAMPLES)]
    assert "right" in kinds
    assert {"wrong", "bare"}.isdisjoint(kinds)


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
