"""Every operator's kernel runs on the strict double, whole and in parts."""

import pytest
from operator_verification import CheckOptions, check_operator

import tdl


@pytest.mark.parametrize("name", sorted(tdl.catalog))
def test_operator_on_the_double(cupy, name):
    result = check_operator(name, CheckOptions(cases=1, xp=cupy))
    assert [str(failure) for failure in result.failures] == []
    assert result.checks >= 4
