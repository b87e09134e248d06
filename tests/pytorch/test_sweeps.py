"""A sample of the sweeps: modules drawn at random, and operators of PyTorch's own tests; none wrong, none fails."""

from itertools import islice

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")

from tests.pytorch import fuzz, opinfo  # noqa: E402

MODULES, SAMPLES = 12, 3
DESCRIBED = (
    "exp", "softmax", "cat", "gather", "cumsum", "pow", "maximum", "atan2", "std", "nn.functional.layer_norm",
    "nn.functional.relu6", "nn.functional.hardswish", "nn.functional.binary_cross_entropy", "index_select",
)  # fmt: skip


@pytest.mark.parametrize("seed", range(MODULES))
def test_modules_drawn_at_random_are_right_or_refused(seed):
    kind, why, steps = fuzz.outcome(seed) or ("right", "", "")
    assert kind in ("right", "refused"), (why, steps)


@pytest.mark.parametrize("info", opinfo.described(DESCRIBED), ids=opinfo.name_of)
def test_described_operators_are_right(info):
    kinds = [kind for _, kind, _ in islice(opinfo.outcomes(info), 2 * SAMPLES)]
    assert "right" in kinds
    assert {"wrong", "bare"}.isdisjoint(kinds)
