"""What each kind of check looks at, and that it looks: wrong gradients, shapes, plans and halos are named."""

from dataclasses import replace

import numpy as np
import pytest
from operator_verification import KINDS, CheckOptions, check_operator
from operator_verification.application import difference
from operator_verification.cases import CASES

import tdl
from executor.cases import Case
from executor.kernels import KERNELS
from planner.graph.rules import RULES


def failed(name, **changes):
    """Names of the checks that fail with something changed in the tables."""
    tables = {"catalog": tdl.catalog, "kernels": KERNELS, "rules": RULES, "generators": CASES}
    tables = {table: {**right, name: changes[table]} if table in changes else right for table, right in tables.items()}
    return {failure.check for failure in check_operator(name, CheckOptions(cases=8, **tables)).failures}


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_kinds_asked_for_are_checked(kind):
    verification = check_operator("convolution", CheckOptions(cases=2, kinds=(kind,)))
    assert set(verification.kinds) == {kind}
    assert verification.checks == verification.kinds[kind] > 0
    assert not verification.failures


def same_shapes(draw):
    return Case((draw.array(3, 2), draw.positive(3, 2)))


RULES_THAT_DO_NOT_APPLY = {
    "raises": (lambda b: 1 / 0, "ZeroDivisionError: division by zero"),
    "too few": (lambda b: (b.gradient,), "(mul): its gradient rule returns 1 gradients for 2 operands; return one"),
    "no tuple": (lambda b: b.gradient, "returns 'arriving0'; return a tuple with one gradient for each operand"),
    "no gradient": (lambda b: (None, 2), "returns 2 for operand 1; expected a tensor's name, or None"),
    "no tensor": (lambda b: (None, "elsewhere"), "tensor 'elsewhere' is not defined"),
    "a wrong shape": (lambda b: (b.emit("sum", (b.gradient,), 0, dims=(0,)), None), "has shape (3, 2)"),
    "a wrong operand": (lambda b: (b.emit("mm", (b.gradient, b.gradient), 0), None), "inconsistent extents of 'k'"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", RULES_THAT_DO_NOT_APPLY)
def test_a_rule_that_does_not_apply_is_one_finding(wrong):
    rule, message = RULES_THAT_DO_NOT_APPLY[wrong]

    options = CheckOptions(cases=1, rules={**RULES, "mul": rule}, generators={**CASES, "mul": same_shapes})
    (failure,) = check_operator("mul", options).failures
    assert failure.check == "gradient rule"
    assert message in failure.message


def test_a_compound_rule_must_be_the_total_derivative():
    """What passes through the statistics belongs to it: the derivative at fixed statistics is wrong."""

    def rule(backward):
        arriving = backward.gradient
        factor = backward.emit_step("cross_entropy_backward", backward.node.inputs, 0, "whole", factor=1.0)
        probabilities = backward.emit_step("mul", (factor, factor), 0, "square")
        return backward.emit("mul", (probabilities, arriving), 0, dims=()), None, None, None

    assert "gradient of operand 0" in failed("cross_entropy", rules=rule)


def test_an_output_that_nothing_reads_and_a_constant_gradient_are_tried():
    checks = {
        failure.check for failure in check_operator("unbind", CheckOptions(rules={"unbind": wrong_rule})).failures
    }
    assert {"gradient of operand 0", "gradient of operand 0 with one output in use"} <= checks
    wrong = {"cross_entropy": wrong_rule}
    checks = {failure.check for failure in check_operator("cross_entropy", CheckOptions(rules=wrong)).failures}
    assert checks == {"gradient of operand 0", "gradient of operand 0 from a constant"}


def wrong_rule(backward):
    return (None,) * len(backward.node.inputs)


def test_a_case_that_states_other_shapes_or_extents():
    def shapes(draw):
        return replace(CASES["mm"](draw), shapes=((1, 1),))

    def extents(draw):
        return replace(CASES["mm"](draw), extents={"k": 77})

    assert failed("mm", generators=shapes) == {"shapes"}
    assert failed("mm", generators=extents) == {"extents"}


def test_an_operand_that_no_graph_would_take():
    """Whole numbers are taken where the results are whole numbers too."""

    def integers(draw):
        return Case((draw.below(5, 3, 4),))

    assert "shapes in a graph" in failed("sigmoid", generators=integers)
    assert failed("relu", generators=integers) == set()


def counting_locally(call):
    KERNELS["mean"](call)
    count = call.inputs[0].size / max(1, call.outputs[0].size)
    call.outputs[0][...] *= call.attributes["count"] / count


def changing_an_operand(call):
    x = call.inputs[0]
    np.exp(x, out=x)
    call.outputs[0][...] = x


def taking_the_last_maximum(call):
    KERNELS["max_pool2d_with_indices"](call)
    height, width = call.attributes["kernel"]
    call.outputs[1][...] = np.maximum(call.outputs[1], height * width - 1)


@pytest.mark.parametrize(
    ("name", "kernel", "check"),
    [
        ("mean", counting_locally, "split r0 on 2 workers"),
        ("exp", changing_an_operand, "kernel"),
        ("max_pool2d_with_indices", taking_the_last_maximum, "kernel"),
    ],
)
def test_a_wrong_kernel_is_found_by_the_check_that_is_for_it(name, kernel, check):
    checks = failed(name, kernels=kernel)
    assert check in checks
    assert ("kernel" in checks) == (check == "kernel")


def test_a_kernel_that_is_wrong_only_in_place():
    def kernel(call):
        np.copyto(call.outputs[0], call.inputs[0])
        call.outputs[0][...] -= call.inputs[1]

    assert failed("sub", kernels=kernel, generators=same_shapes) == {"in place of operands 1"}


CASES_THAT_ARE_NONE = {
    "raises": (lambda draw: 1 / 0, "ZeroDivisionError: division by zero at test_checks.py:"),
    "nothing": (lambda draw: None, "the generator of cases returns None; expected a Case"),
    "lists": (
        lambda draw: Case(([1.0],)),
        "operand 0 of the case drawn is list; expected an array of float64 or int32 or bool",
    ),
    "single": (lambda draw: Case((np.ones(2, np.float32),)), "operand 0 of the case drawn is float32"),
}


@pytest.mark.parametrize("wrong", CASES_THAT_ARE_NONE)
def test_a_generator_without_cases_is_one_finding(wrong):
    generate, message = CASES_THAT_ARE_NONE[wrong]
    (failure,) = check_operator("relu", CheckOptions(generators={**CASES, "relu": generate})).failures
    assert failure.check == "cases"
    assert message in failure.message


def test_what_is_not_registered_is_named():
    failures = check_operator("relu", CheckOptions(kernels={}, generators={})).failures
    assert [(failure.check, failure.message) for failure in failures] == [
        ("kernel", "none registered; use executor.extensions.kernel"),
        ("cases", "none registered; use executor.extensions.cases"),
    ]


KERNELS_THAT_DO_NOT_WRITE = {
    "replaces an output": (
        lambda call: call.outputs.__setitem__(0, 2),
        "call.outputs[0] cannot be another array: write",
    ),
    "returns its result": (lambda call: call.inputs[0] * 1, "the kernel does not write output 0: every element must"),
    "writes a part": (lambda call: call.outputs[0][1:].fill(0), "the kernel does not write output 0 at [0"),
    "adds to what was there": (lambda call: call.outputs[0].__iadd__(1), "without reading what was there"),
}


@pytest.mark.parametrize(
    ("wrong", "name"),
    [*((wrong, "relu") for wrong in KERNELS_THAT_DO_NOT_WRITE), ("writes a part", "max_pool2d_with_indices")],
)
def test_a_kernel_that_does_not_write_its_output(wrong, name):
    kernel, message = KERNELS_THAT_DO_NOT_WRITE[wrong]
    failure = check_operator(name, CheckOptions(brief=True, kernels={**KERNELS, name: kernel})).failures[0]
    assert failure.check == "kernel"
    assert message in failure.message


def test_a_kernel_may_compute_no_number():
    """What was never written is told apart from what was computed as NaN."""
    options = CheckOptions(generators={**CASES, "tanh": lambda draw: Case((np.full(draw.sizes(2), np.nan),))})
    assert not check_operator("tanh", replace(options, kinds=("kernel", "split"))).failures


class Narrow:
    """An operator whose strategies state no halo."""

    def __init__(self, name):
        self.operator, self.name = tdl.catalog[name], name

    def describe(self, ranks, attributes):
        description = self.operator.describe(ranks, attributes)
        none = tdl.Affine((), 0)
        narrow = {
            variable: replace(strategy, halos=tuple(replace(halo, below=none, above=none) for halo in strategy.halos))
            for variable, strategy in description.strategies.items()
        }
        return replace(description, strategies=narrow)


@pytest.mark.parametrize("name", ["convolution", "max_pool2d_with_indices"])
def test_halos_that_are_too_narrow(name):
    checks = failed(name, catalog=Narrow(name))
    assert checks
    assert all(check.startswith("halo of ") for check in checks)


EXPECTED = (np.array([1.0, np.inf, np.nan, 4.0]),)


@pytest.mark.parametrize(
    ("values", "same"),
    [
        ([1, np.inf, np.nan, 4], True),
        ([1 + 1e-12, np.inf, np.nan, 4], True),
        ([1 + 1e-6, np.inf, np.nan, 4], False),
        ([1, np.inf, np.nan, np.nan], False),
        ([1, -np.inf, np.nan, 4], False),
        ([1, 1e300, np.nan, 4], False),
        ([1, np.inf, 0, 4], False),
        ([np.inf, np.inf, np.nan, 4], False),
        ([1, np.inf, np.nan], False),
    ],
)
def test_differences(values, same):
    """An infinite value expected in one place hides nothing elsewhere."""
    assert (difference((np.array(values, dtype=float),), EXPECTED, 1e-9) is None) == same


def test_differences_in_number_and_shape():
    assert difference((), EXPECTED, 1e-9) == "0 outputs, expected 1"
    assert difference((np.ones((2, 2)),), EXPECTED, 1e-9) == "output 0 has shape (2, 2), expected (4,)"
    assert difference((np.ones(()),), (np.ones(()),), 1e-9) is None
