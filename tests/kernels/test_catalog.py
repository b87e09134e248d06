"""Every operator of the catalog has a kernel that equals its description, whole and in parts."""

import importlib

import pytest
from operator_verification import CheckOptions, check_operator
from operator_verification.cases import CASES

import tdl
from executor.kernels import KERNELS, convolution
from planner.graph.opaque_ops import OPERATORS
from planner.graph.rules import RULES, flat
from planner.program import workspace
from tdl.catalog import compound, elementwise

OPAQUE = {operator.name for operator in OPERATORS}
NAMES = sorted(name for name in tdl.catalog if name not in OPAQUE)
TABLES = {*elementwise.OPERATORS, *compound.OPERATORS} - elementwise.PLAIN.keys()
"""Operators from tables of element-wise functions: one description with many functions, so few cases of each."""


def test_kernels_and_cases_cover_exactly_the_catalog():
    assert sorted(KERNELS.keys() - OPAQUE) == NAMES
    assert sorted(CASES) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_operator_equals_its_description_whole_and_along_every_strategy(name):
    result = check_operator(name, CheckOptions(cases=2 if name in TABLES else 6))
    assert [str(failure) for failure in result.failures] == []
    assert result.checks >= 16
    assert ("gradient" in result.kinds) == (RULES.get(name, flat) is not flat or name == "stop_gradient")


PATHS = {
    "stacked shifts": {"BATCHED_AREA": 0},
    "columns at once": {"BATCHED_AREA": 1 << 30},
    "one image at a time, columns": {"BATCHED_AREA": 1 << 30, "HOST_WORKSPACE_BYTES": 1, "WEIGHTS_PER_PART": 0},
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", ["convolution", "convolution_backward_input", "convolution_backward_weight"])
def test_every_way_of_convolving_is_right(monkeypatch, path, name):
    for constant, value in PATHS[path].items():
        monkeypatch.setattr(convolution if constant == "HOST_WORKSPACE_BYTES" else workspace, constant, value)
    result = check_operator(name, CheckOptions(cases=8, seed=1))
    assert [str(failure) for failure in result.failures] == []


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_operator_on_a_gpu(name):
    result = check_operator(name, CheckOptions(cases=4, xp=importlib.import_module("cupy")))
    assert [str(failure) for failure in result.failures] == []
