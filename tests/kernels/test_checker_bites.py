"""The verification finds wrong kernels, wrong descriptions and wrong strategies."""

from dataclasses import replace

import numpy as np
import pytest

import tdl
from executor.cases import Case
from executor.kernels import KERNELS
from executor.verification import CheckOptions, check_operator


def failed_checks(name, kernel=None, operator=None, generate=None):
    changes = {}
    if kernel is not None:
        changes["kernels"] = {**KERNELS, name: kernel}
    if operator is not None:
        changes["catalog"] = {**tdl.catalog, name: operator}
    if generate is not None:
        changes["generators"] = {name: generate}
    result = check_operator(name, replace(CheckOptions(cases=10), **changes))
    return {failure.check for failure in result.failures}


def altered(name, **change):
    """The right kernel, told something wrong."""

    def kernel(call):
        KERNELS[name](replace(call, **{field: alter(call) for field, alter in change.items()}))

    return kernel


def without_origins(call):
    return tuple((0,) * len(origin) for origin in call.origins)


def from_zero(call):
    return {variable: (0, stop - start) for variable, (start, stop) in call.ranges.items()}


@pytest.mark.parametrize(
    "name", ["convolution", "convolution_backward_input", "convolution_backward_weight", "avg_pool2d"]
)
def test_a_kernel_that_pads_every_part_alike_is_right_only_on_the_whole(name):
    found = failed_checks(name, altered(name, origins=without_origins))
    assert "kernel" not in found
    assert any(check.startswith("split") for check in found)


@pytest.mark.parametrize(
    ("name", "variable"), [("cross_entropy", "c"), ("cross_entropy_backward", "c"), ("stack", "s")]
)
def test_a_kernel_that_numbers_a_part_from_zero_is_caught(name, variable):
    found = failed_checks(name, altered(name, ranges=from_zero))
    assert "kernel" not in found
    assert f"split {variable}" in found


def test_a_mean_over_the_local_count_is_caught():
    def kernel(call):
        KERNELS["mean"](call)
        count = call.inputs[0].size / max(1, call.outputs[0].size)
        call.outputs[0][...] *= call.attributes["count"] / count

    found = failed_checks("mean", kernel)
    assert "kernel" not in found
    assert "split r0" in found


def test_an_element_that_is_not_written_is_caught():
    def kernel(call):
        np.maximum(call.inputs[0][..., :-1], 0, out=call.outputs[0][..., :-1])

    assert "kernel" in failed_checks("relu", kernel)


def test_a_kernel_that_is_wrong_only_in_place_is_caught():
    def kernel(call):
        np.copyto(call.outputs[0], call.inputs[0])
        b = call.inputs[1]
        call.outputs[0][...] -= b

    shape = (3, 2)
    found = failed_checks("sub", kernel, generate=lambda draw: Case((draw.array(*shape), draw.positive(*shape))))
    assert found == {"in place of operands 1"}


def test_a_kernel_that_changes_an_operand_is_caught():
    def kernel(call):
        x = call.inputs[0]
        np.exp(x, out=x)
        call.outputs[0][...] = x

    assert "kernel" in failed_checks("exp", kernel)


def test_the_last_instead_of_the_first_maximum_is_caught():
    def kernel(call):
        KERNELS["max_pool2d_with_indices"](call)
        height, width = call.attributes["kernel"]
        call.outputs[1][...] = np.maximum(call.outputs[1], height * width - 1)

    assert "kernel" in failed_checks("max_pool2d_with_indices", kernel)


def test_a_kernel_that_raises_is_a_finding_not_a_crash():
    def kernel(call):
        raise RuntimeError("no such luck")

    assert "kernel" in failed_checks("exp", kernel)


def test_a_description_of_another_transposition_is_caught():
    @tdl.op
    def mm(a, b, *, transpose_a=False, transpose_b=False):
        return lambda i, j: tdl.Sum(lambda k: a[i, k] * b[k, j])

    assert failed_checks("mm", operator=mm)


def test_a_description_that_is_off_by_one_is_caught():
    @tdl.op
    def tril(x, *, diagonal=0):
        return lambda *i: tdl.where(i[-1] - i[-2] < diagonal, x[i], 0)

    assert failed_checks("tril", operator=tril)


class Claiming:
    """An operator that claims a strategy which it does not have."""

    def __init__(self, name, variable, reducer):
        self.operator, self.name = tdl.catalog[name], name
        self.strategy = tdl.Strategy(variable, reducer, ())

    def describe(self, ranks, attributes):
        found = self.operator.describe(ranks, attributes)
        return replace(found, strategies={**found.strategies, self.strategy.variable: self.strategy})


@pytest.mark.parametrize(
    ("name", "variable", "reducer"),
    [
        ("mm", "k", None),
        ("mm", "k", "Max"),
        ("amax", "r0", "Sum"),
        ("sort", "i0", None),
        ("max_pool2d_with_indices", "dy", "Max"),
    ],
)
def test_a_strategy_that_is_none_is_caught(name, variable, reducer):
    assert f"split {variable}" in failed_checks(name, operator=Claiming(name, variable, reducer))


def test_an_operator_without_kernel_or_cases_is_a_failure():
    @tdl.op
    def twice(x):
        return lambda i: x[i] + x[i]

    assert failed_checks("twice", operator=twice) == {"kernel", "cases"}
