"""Why a candidate loses: causes, the net of them, and workers that do not do alike."""

import pytest
from msgspec.structs import replace

from simulator.projection.result import BUBBLE, IDEAL, INEFFICIENCY, StageLine
from tensor_partitioner.decision import decide
from tensor_partitioner.decision.answer import searched
from tensor_partitioner.decision.record import ALL_ALIKE, FAMILIES
from tensor_partitioner.decision.why import verdict, why, why_searched


@pytest.fixture(scope="module")
def best():
    options = {"heads": 4, "sequence": 32, "vocabulary": 256}
    candidate = decide("transformer-2-64", "hgx-h100", batch=16, pins=("tp=1", "pp=1"), budget_s=60, **options).best
    return replace(candidate, shares=dict.fromkeys(candidate.shares, 0.01), seconds_per_step=1.0)


def of(best, seconds, stages=(), parallel="dp=8", **more):
    """A candidate that takes so many seconds, with more of some causes than the best."""
    shares = {**best.shares, **{cause: best.shares[cause] + s for cause, s in more.items()}}
    told = tuple(
        StageLine(first=str(n), last=str(n), forward_s=s / 3, backward_s=2 * s / 3, needed_bytes=1)
        for n, s in enumerate(stages)
    )
    return replace(best, seconds_per_step=seconds, shares=shares, stages=told, parallel=parallel)


@pytest.mark.parametrize(
    ("more", "net", "said"),
    [
        ({INEFFICIENCY: 0.001}, 0.001, "+1 ms: kernel inefficiency +1 ms"),
        ({INEFFICIENCY: 0.001, BUBBLE: 0.001}, 0.002, "+2 ms: kernel inefficiency +1 ms, pipeline bubble +1 ms"),
        (
            {INEFFICIENCY: 0.002, BUBBLE: -0.0005},
            0.0015,
            "+1.5 ms: kernel inefficiency +2 ms, pipeline bubble -500 us",
        ),
        ({INEFFICIENCY: 0.002, IDEAL: -0.002}, 0.0, "as fast"),
    ],
)
def test_the_net_is_said_where_a_cause_is_not_all_of_it(best, more, net, said):
    assert why(of(best, 1.0 + net, **more), best) == said


def test_stages_that_are_uneven_are_named(best):
    stages = (1.0, 1.0, 1.0, 2.0)
    said = why(of(best, 1.001, stages, **{BUBBLE: 0.001}), best)
    assert said == "+1 ms: pipeline bubble +1 ms; the last stage takes 1.60 times the mean"
    assert "stage 2 of 4 takes 1.60" in why(of(best, 1.001, (1.0, 2.0, 1.0, 1.0), **{IDEAL: 0.001}), best)
    assert why(of(best, 1.001, (1.0, 1.0, 1.0, 1.1), **{BUBBLE: 0.001}), best).endswith("bubble +1 ms")
    assert why(of(best, 1.001, stages, optimizer=0.001), best) == "+1 ms: optimizer +1 ms"
    alike = replace(best, stages=of(best, 1.0, stages).stages)
    assert why(of(best, 1.001, stages, **{BUBBLE: 0.001}), alike).endswith("bubble +1 ms")


def test_heads_that_tensor_parallel_workers_do_not_divide_are_named(best):
    split = of(best, 1.001, parallel="tp=8,sp", **{IDEAL: 0.001})
    assert why(split, best, heads=12) == "+1 ms: ideal compute +1 ms; 8 workers do not divide 12 heads"
    assert why(split, best, heads=16) == why(split, best) == "+1 ms: ideal compute +1 ms"


def test_candidates_are_counted_and_what_is_left_open_is_said():
    decision = decide("mlp-2-16", "hgx-h100", batch=16, pins=("tp=1",), budget_s=60)
    search = replace(decision.search, projected=184, considered=7610, seconds=2.0)
    said = searched(replace(decision, search=search))
    assert said.startswith("proved: no candidate is predicted to be faster (184 of 7,610 candidates priced in 2 s")
    search = replace(search, unfinished=5, gap=0.25, lower_bound_s=0.004)
    said = searched(replace(decision, search=search))
    assert said.startswith("not finished: 5 candidates were not priced; none takes less than 4 ms, 20.0% less than")


def test_one_device_is_said_to_be_faster_where_it_is(best):
    decision = decide("mlp-2-16", "hgx-h100", batch=16, pins=("tp=1",), budget_s=60)
    model, machine = decision.model, decision.machine
    assert verdict(model, machine, (best,), 1.0).startswith(
        "Use one device: it is as fast, 1 s a step; 8 devices gain nothing. If all have to be used: Train"
    )
    assert verdict(model, machine, (best,), 0.5).startswith("Use one device: it is faster, 500 ms a step; 8")
    alike = replace(best, name=f"{best.name}{ALL_ALIKE}")
    assert "8 devices do the same work." in verdict(model, machine, (alike,), 1.0)
    assert verdict(model, replace(machine, devices=1), (best,), 1.0).startswith("Train")


def test_recomputation_is_no_remedy_where_all_is_computed_again(best):
    decision = decide("mlp-2-16", "hgx-h100", batch=16, pins=("tp=1",), budget_s=60)
    full = replace(best, fits=False, name="dp=8")
    assert "more devices or recomputation would help" in verdict(decision.model, decision.machine, (full,))
    again = replace(full, name="dp=8,recompute=full")
    assert verdict(decision.model, decision.machine, (again,)).endswith("a smaller batch or more devices would help.")
    unfit = replace(decision, candidates=(full,), search=replace(decision.search, gap=0.0))
    assert searched(unfit).startswith("proved: no candidate fits")


def test_a_plan_of_least_time_that_is_slower_than_that_of_least_bytes_says_why(best):
    least_bytes, slower, faster = (
        replace(best, family=FAMILIES[goal], seconds_per_step=s)
        for goal, s in (("bytes", 1.0), ("time", 1.1), ("time", 0.9))
    )
    assert "no fusion and no overlap" in why_searched(slower, (least_bytes, slower))
    assert not why_searched(faster, (faster, least_bytes))
    assert not why_searched(slower, (slower, replace(least_bytes, fits=False)))
    assert not why_searched(replace(least_bytes, seconds_per_step=2.0), (faster, least_bytes))
