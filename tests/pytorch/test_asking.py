"""Assertions on data are passed over, whatever they are made with, and at no more traces than there are places."""

import pytest

torch = pytest.importorskip("torch")

from planner.errors import GraphError  # noqa: E402
from planner.pytorch import from_torch, tracing  # noqa: E402
from tests.pytorch import checks  # noqa: E402
from tests.pytorch.eager import differences  # noqa: E402


@pytest.fixture
def traces(monkeypatch):
    exports, export = [], tracing.export
    monkeypatch.setattr(tracing, "export", lambda *given, **named: exports.append(0) or export(*given, **named))
    return exports


@pytest.mark.parametrize(("check", "most"), [(checks.asserted, 4), (checks.raised, 7), (checks.of_a_distribution, 1)])
def test_a_check_of_every_layer_is_passed_over_at_once(traces, check, most):
    torch.manual_seed(0)
    _, loss, parameters = differences(checks.Checked(check).double(), (torch.randn(3, 4, dtype=torch.float64),))
    assert loss < 1e-12
    assert max(parameters.values()) < 1e-10
    assert len(traces) == most


@pytest.mark.parametrize("check", [checks.raised_in_the_first, checks.caught])
def test_data_that_decide_what_else_is_done_are_refused(check):
    with pytest.raises(GraphError, match=r"data decide what Python does"):
        from_torch(checks.Checked(check), (torch.randn(3, 4),))
