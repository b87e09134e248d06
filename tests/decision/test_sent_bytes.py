"""Bytes by axis that a projection says a device sends are those of the program of the plan of the same name."""

from dataclasses import replace

import pytest

import planner
from planner.layout import by_axis
from planner.parallel import Parallel
from tensor_partitioner.projection import project
from tests.search.test_named_bytes import ITEM, MODELS, SIZES, WIDTH, drawn, layer_weights, norm

MACHINE = "hgx-h100-nodes-2"
SMALL = 8
"""Bytes: of the loss, whose mean over workers is shown, and of what is rounded."""


def bytes_of_program(name, options, spec, micro_batches):
    plan = planner.plan(planner.model(name, micro_batches=micro_batches, **options), parallel=spec)
    return {axes: nbytes / plan.workers for axes, nbytes in by_axis(plan.bytes, plan.ways).items()}


def bytes_of_projection(name, options, spec, micro_batches):
    options = dict(options)
    batch = options.pop("batch")
    spec = replace(spec, micro_batch=batch // spec.dp // micro_batches)
    return project(name, options, batch=batch, parallel=spec, machine=MACHINE, stack="compile").sent_bytes


def compare(sent, expected):
    for axes in {*sent, *expected}:
        assert sent.get(axes, 0) == pytest.approx(expected.get(axes, 0), abs=SMALL), axes


def gradients_reduced_apart(sent, model, spec, micro_batches):
    """Return bytes where tensor parallel workers reduce gradients of what they all have, and then replicas do.

    The program reduces them once among all; of what pairs move that differ along several axes the rest is another's.
    """
    kept = [weight for parts in range(4) for part in layer_weights(model, parts) for weight in part if not weight.split]
    nbytes = ITEM * sum(weight.elements for weight in (*kept, *norm("norm", model == "gpt"))) / spec.pp
    apart = {}
    for axes, count in sent.items():
        others = " x ".join(axis for axis in axes.split(" x ") if axis != "tp")
        apart[others or "tp"] = apart.get(others or "tp", 0) + count
    often = micro_batches if spec.zero > 1 else 1
    shared = 2 * (spec.tp - 1) / spec.tp * nbytes
    return apart | {"tp": apart["tp"] + shared * (1 - often / spec.dp / spec.cp)}


@pytest.mark.parametrize("seed", range(40))
def test_bytes_are_those_of_the_program(seed):
    model, spec, micro_batches = drawn(seed)
    model = "llama" if model == "module" else model
    if model == "gpt" and (spec.sp or spec.cp > 1):  # frameworks have all positions everywhere, programs parts of them
        spec = replace(spec, sp=False, cp=1)
    name, chosen = MODELS[model]
    job = name, SIZES | chosen, spec, micro_batches
    expected = bytes_of_program(*job) if spec.workers > 1 else {}
    if spec.sp:
        expected = gradients_reduced_apart(expected, model, spec, micro_batches)
    compare(bytes_of_projection(*job), expected)


@pytest.mark.parametrize("dtype", ["mixed", "bfloat16"])
@pytest.mark.parametrize("zero", range(4))
def test_masters_of_weights_are_never_gathered(zero, dtype):
    """From stage 1 on, DeepSpeed and Megatron-LM share out masters, and gather the copies that are computed with."""
    name, (options, micro_batches) = "llama-4-64", (SIZES | {"hidden": 128, "dtype": dtype, "optimizer": "adam"}, 2)
    job = name, options, Parallel(dp=4, zero=zero), micro_batches
    expected = bytes_of_program(*job)
    compare(bytes_of_projection(*job), expected)
    parameters = 4 * (4 * WIDTH**2 + 3 * WIDTH * 128 + 2 * WIDTH) + (2 * SIZES["vocabulary"] + 1) * WIDTH
    passes = {0: 2, 1: 2, 2: 1 + micro_batches, 3: 3 * micro_batches}[zero]
    assert expected["dp"] == pytest.approx(passes * 2 * parameters * 3 / 4, abs=SMALL)
