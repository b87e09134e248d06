"""Budgets of what a step asks of a GPU, counted on the double: launches, waits, and bytes beside the arena.

PyTorch's operators count as one launch each, which for a few is less than they are. Launches and waits depend on no
size, so that batches are small here.
"""

from collections import Counter

import pytest

pytest.importorskip("torch")
import executor.torch  # noqa: F401  # enters its kernels
import tensor_partitioner as tp
from tests.cupy_double.counted import counted
from tests.cupy_double.torch_operators import Operators

GPT2 = {"batch": 1, "sequence": 32, "optimizer": "adamw"}
MODELS = {
    "GPT-2": ("gpt2", GPT2),
    "GPT-2 mixed": ("gpt2", {**GPT2, "dtype": "mixed"}),
    "llama block": ("llama-1-1024", {"batch": 1, "sequence": 16, "dtype": "bfloat16"}),
    "WResNet-50": ("wresnet-50-1", {"batch": 2, "image": 64}),
}
BUDGETS = {
    ("GPT-2", "torch"): (1500, 0.01),
    ("GPT-2 mixed", "torch"): (2550, 0.01),
    ("llama block", "torch"): (265, 0.03),
    ("WResNet-50", "torch"): (1532, 0.04),
    ("GPT-2", "arrays"): (6800, 0.14),
    ("WResNet-50", "arrays"): (4300, 0.07),
}
"""Launches, and bytes beside the arena as a share of it, by model and library."""

AT_THE_END = Counter(get=1)
"""What the host reads once a step has ended: whether integers were too large, in graphs that compute any."""


def planned(model, **options):
    return tp.plan(tp.model(model, **options), workers=1)


def count(plan, library):
    return counted(plan, library, Operators() if library == "torch" else None)


@pytest.mark.slow
@pytest.mark.sample(len(BUDGETS))
@pytest.mark.parametrize(("model", "library"), BUDGETS)
def test_a_step_stays_within_its_budget(model, library):
    name, options = MODELS[model]
    step = count(planned(name, **options), library)
    launches, share = BUDGETS[model, library]
    assert step.launches.total() <= launches, step.launches.most_common(20)
    assert step.waits <= AT_THE_END, step.waits
    assert step.pool_bytes <= share * step.arena_bytes


@pytest.mark.parametrize("library", ["arrays", "torch"])
@pytest.mark.parametrize("model", ["llama-2-64", "transformer-2-64", "cnn-3-8", "rnn-1-16"])
def test_launches_and_waits_depend_on_no_size(model, library):
    sizes = (
        [{"batch": 2}, {"batch": 4}]
        if model.startswith(("cnn", "rnn"))
        else [{"batch": 1, "sequence": 16}, {"batch": 2, "sequence": 32}]
    )
    small, large = (count(planned(model, **size), library) for size in sizes)
    assert small.launches == large.launches
    assert small.waits == large.waits
    assert small.waits <= AT_THE_END
