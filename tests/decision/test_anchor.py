"""A measured step: what it changes, beside closed forms, and a decision that goes by it."""

import json
import math
from statistics import pvariance

import pytest
from hypothesis import given, strategies as st

from planner.errors import InputError
from planner.parallel import Parallel
from simulator.projection.network import cluster
from simulator.projection.stack import stack_named
from tensor_partitioner.decision import decide
from tensor_partitioner.decision.answer import Answer
from tensor_partitioner.decision.measured import Prior, anchor, measured_anchor, prior
from tensor_partitioner.decision.record import PublishedScore
from tensor_partitioner.projection import project_source
from tensor_partitioner.replicas import ZooModel

STACK = stack_named("eager")
POSITIVE = st.floats(1e-3, 1e3)
WORDS = {"dtype": "mixed", "optimizer": "adam"}


def power_of(parts):
    """Return seconds that are the products of how long parts take, each to a power: exact for logarithms."""

    def price(stack):
        times = stack.kernel_times, stack.exchange_times, stack.host_s / STACK.host_s
        return math.prod(of**power for of, power in zip(times, parts, strict=True))

    return price


def sum_of(parts):
    def price(stack):
        times = stack.kernel_times, stack.exchange_times, stack.host_s / STACK.host_s
        return sum(of * seconds for of, seconds in zip(times, parts, strict=True))

    return price


def test_two_parts_take_their_gains_of_the_difference():
    """Kernels of two thirds of a step and exchanges of a third, as likely to be off, and half as much beside: in closed
    form gains are v s / (v |s|^2 + o)."""
    powers, common, own = (2 / 3, 1 / 3, 0.0), 0.04, 0.02
    seen = anchor(power_of(powers), STACK, 1.3, common, own)
    total = common * (4 / 9 + 1 / 9) + own
    expected = [math.exp(common * power / total * math.log(1.3)) for power in powers]
    assert [seen.kernels, seen.exchanges, seen.host] == pytest.approx(expected, rel=1e-9)


@given(st.tuples(POSITIVE, POSITIVE, POSITIVE), st.floats(0.2, 5.0))
def test_without_an_error_of_its_own_a_step_is_predicted_as_it_was_measured(parts, ratio):
    price = sum_of(parts)
    seen = anchor(price, STACK, ratio * price(STACK), 0.01, 1e-12)
    assert seen.anchored_s == pytest.approx(seen.measured_s, rel=1e-4)


@given(st.tuples(POSITIVE, POSITIVE, POSITIVE), st.floats(0.2, 5.0), st.floats(1e-4, 1.0), st.floats(1e-4, 1.0))
def test_a_prediction_moves_towards_the_measurement_and_never_past_it(parts, ratio, common, own):
    price = sum_of(parts)
    seen = anchor(price, STACK, ratio * price(STACK), common, own)
    low, high = sorted((seen.predicted_s, seen.measured_s))
    assert low * (1 - 1e-6) <= seen.anchored_s <= high * (1 + 1e-6)
    assert min(seen.kernels, seen.exchanges, seen.host) > 0
    assert seen.anchored_s == pytest.approx(price(seen.of(STACK)))


@given(st.tuples(POSITIVE, POSITIVE, POSITIVE))
def test_what_was_predicted_changes_nothing(parts):
    price = sum_of(parts)
    seen = anchor(price, STACK, price(STACK), 0.01, 0.01)
    assert seen.of(STACK) == STACK
    assert seen.anchored_s == seen.predicted_s


def score(ratios, *, experts=False, within=None):
    figures = {"mean": 0.1, "p90": 0.1, "bias": 0.0}
    return PublishedScore(
        source="s", assumed=(), runs=9, experts=experts, ratios=tuple(map(math.exp, ratios)), within=within, **figures
    )


def test_variances_are_of_sources_of_models_and_of_runs():
    first, second = (0.1, 0.2, 0.3), (-0.2, 0.0, 0.2)
    within = (pvariance(first) + pvariance(second)) / 2
    scores = [score(first, within=0.05), score(second), score((1.0, 2.0), experts=True)]
    assert prior(scores, experts=False) == pytest.approx(Prior(0.2**2 / 2, within - 0.05**2, 0.05**2))
    assert prior(scores, experts=True) == pytest.approx(Prior(1.5**2, 0.0, 0.25))
    assert prior(scores[:1], experts=True) == prior(scores[:1], experts=False)


@pytest.fixture(scope="module")
def before():
    return decide("gpt2", "hgx-h100", batch=64)


def test_a_decision_goes_by_a_measured_step(before):
    step = project_source(ZooModel.of("gpt2", WORDS), 64, Parallel.read("dp=8"), cluster("hgx-h100"), "compile")
    slow = decide("gpt2", "hgx-h100", batch=64, measured=f"dp=8 = {1.3 * step.seconds} s")
    assert slow.anchor is not None
    assert slow.anchor.predicted_s == pytest.approx(step.seconds, rel=0.2)
    assert before.best.seconds_per_step < slow.best.seconds_per_step < 1.3 * before.best.seconds_per_step
    assert slow.search.unfinished == 0
    assert slow.band == before.band
    said = "\n".join(Answer(slow).lines(100))
    assert f"kernels x{slow.anchor.kernels:.2f}" in said
    assert before.anchor is None


@pytest.mark.parametrize(
    "pace", ["1s", "1000 ms", "65,536 tok/s", "65.536k tok/s", "8.192 k tok/s/GPU", "64 samples/s"]
)
def test_paces_are_those_of_diagnose(pace):
    source = ZooModel.of("gpt2", WORDS)
    seen = measured_anchor(f"dp=8,micro-batch=4={pace}", source, 64, cluster("hgx-h100"), stack_named("compile"))
    assert seen.measured_s == pytest.approx(1.0)


def test_a_pace_may_be_in_a_profile(tmp_path):
    event = {"ph": "X", "name": "aten::mm", "cat": "cpu_op", "ts": 0, "dur": 1e6}
    step = {"ph": "X", "name": "ProfilerStep#3", "cat": "user_annotation", "ts": 0, "dur": 1e6}
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": [event, step]}))
    source, machine = ZooModel.of("gpt2", WORDS), cluster("hgx-h100")
    seen = measured_anchor(f"dp=8 = {tmp_path / 'trace.json'}", source, 64, machine, stack_named("compile"))
    assert seen.measured_s == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("measured", "batch", "message"),
    [
        ("1s", 64, "expected parallelism and a pace"),
        ("dp=8=1s", None, "expected --batch"),
        ("dp=8=fast", 64, "expected a number and s, ms"),
        ("dp=8=1ns", 64, "expected a number and s, ms"),
        ("dp=8=1e-9 s", 64, "expected at most the peak"),
        ("dp=8=4.97 ks", 64, "expected a number and s, ms"),
        ("dp=8=30 s/GPU", 64, "expected a number and s, ms"),
        ("dp=7=1s", 64, "dp=7=1s: "),
    ],
)
def test_what_is_no_measured_step_is_refused(measured, batch, message):
    with pytest.raises(InputError, match=message):
        measured_anchor(measured, ZooModel.of("gpt2", WORDS), batch, cluster("hgx-h100"), STACK)


def test_a_machine_that_is_simulated_takes_no_measured_step():
    with pytest.raises(InputError, match="--measured: expected equal devices and a framework's stack"):
        decide("mlp-2-16", "uniform-2", batch=8, stack="ours", measured="dp=2=1s")
