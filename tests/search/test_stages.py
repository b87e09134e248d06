"""The stages of the solver, each and in any order: what they say of the optimum holds."""

from functools import cache
from itertools import permutations
from time import process_time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from planner.search import Limits, SearchOptions, space_of
from planner.search.costs.tables import Tables
from planner.search.joint import joint
from planner.search.recursive import recursive
from planner.search.representatives import representatives_of_states
from planner.search.solver import minimise as of_minimise
from planner.search.solver.limits import NO_BOUND, Tuning
from planner.search.solver.minimise import STAGES, Task, bound_by_messages, minimise, solve_whole
from planner.search.solver.model import DenseModel, model_of_graph
from planner.search.solver.problem import Problem
from planner.search.solver.search_state import SearchState
from tests.search.graphs import random_graph
from tests.search.test_coarse_to_fine import Scaled, assert_true_of, grouped
from tests.search.test_solver import enumerated, least, problems

SEEDS = range(0, 216, 18)
SUBSETS = st.lists(st.sampled_from(sorted(STAGES)), max_size=len(STAGES))

TUNINGS = st.builds(
    Tuning,
    quotient_part=st.just(1),
    few_states=st.just(0),
    quick_operations=st.sampled_from([0, 50, 1e9]),
    few_entries=st.sampled_from([0, 3e6]),
    table_entries=st.sampled_from([0, 40, 3e8]),
    near_choices=st.sampled_from([0, 5, 1 << 22]),
    close=st.sampled_from([0, 1]),
    sweeps=st.sampled_from([1, 30]),
)
LIMITS = st.builds(
    Limits,
    memory_bytes=st.sampled_from([0, 100, 3 << 30]),
    operations=st.sampled_from([0, 20, 5e10]),
    seconds=st.sampled_from([0, 60, 60, 60]),
    tuning=TUNINGS,
)


def task(model, limits=Limits(), groups=None):  # noqa: B008 - a frozen value
    return Task(model, limits, process_time() + limits.seconds, groups)


def first(problem):
    return SearchState.of_choice(DenseModel(problem), (0,) * len(problem.sizes))


def chain():
    rng, tables = np.random.default_rng(0), Tables()
    terms = tuple(((v, v + 1), tables.intern(rng.integers(0, 99, (4, 4)))) for v in range(5))
    return Problem(tables, (4,) * 6, terms, 5)


@given(grouped(fewest=0), SUBSETS, LIMITS, st.booleans())
@settings(deadline=None, max_examples=300)
def test_whatever_stages_run_what_is_known_is_true(case, names, limits, with_groups):
    problem, groups = case
    search = first(problem)
    one = task(DenseModel(problem), limits, (lambda: groups) if with_groups else None)
    for name in names:
        found = STAGES[name](one, search)
        assert found.cost <= search.cost
        assert found.lower >= search.lower
        assert_true_of(found, problem)
        search = found


@given(grouped(fewest=0), SUBSETS, LIMITS, st.booleans())
@settings(deadline=None, max_examples=200)
def test_whatever_stages_there_are_the_gap_is_certified(case, names, limits, with_groups):
    problem, groups = case
    start = tuple(size - 1 for size in problem.sizes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of_minimise, "STAGES", {str(at): STAGES[name] for at, name in enumerate(names)})
        found = minimise(DenseModel(problem), limits, start, (lambda: groups) if with_groups else None)
    assert problem.value(found.states) == found.value <= problem.value(start)
    assert found.bound <= least(problem) <= found.value


def test_a_bound_of_what_is_left_is_no_bound_of_what_is_known(monkeypatch):
    """Where no better choice is left, that may cost more than the best known does."""
    monkeypatch.setattr(of_minimise, "STAGES", {"left": lambda _, search: search.with_lower_bound(search.cost + 1)})
    found = minimise(DenseModel(chain()), Limits())
    assert found.bound == found.value


@given(grouped(fewest=0))
@settings(deadline=None)
def test_the_stage_that_solves_all_does(case):
    problem, groups = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of_minimise, "STAGES", {"whole": solve_whole})
        found = minimise(DenseModel(problem), Limits(), representatives=lambda: groups)
    assert found.bound == found.value == least(problem)


def graph_model(seed):
    space = space_of(random_graph(seed), SearchOptions((2, 2), placements=("S", "S,R")[seed // 18 % 2]))
    domains = [space.domain(v, space.candidates(v)) for v in range(len(space.coarse.variables))]
    plan = recursive(space, Limits()).choice
    start = [domain.states.index(state) for domain, state in zip(domains, plan, strict=True)]
    groups = representatives_of_states(space.coarse, domains, plan)
    return model_of_graph(space.coarse, domains, space.objective), start, groups


@cache
def solved_graph(seed):
    """A random graph's model, a plan to begin with, groups of states, and the best plan."""
    model, start, groups = graph_model(seed)
    best = minimise(model, Limits())
    assert best.bound == best.value
    return model, start, groups, best


@pytest.mark.parametrize("begin", ["plan", "first"])
@pytest.mark.parametrize("seed", SEEDS)
def test_stages_in_any_order_on_random_graphs(seed, begin):
    """The best plan stays live until a plan as good is known."""
    model, start, groups, best = solved_graph(seed)
    stages = [name for name in STAGES if name != "whole"]
    limits = Limits(tuning=Tuning(quotient_part=1, few_states=0))
    for names in permutations(stages):
        search = SearchState.of_choice(model, start if begin == "plan" else [0] * len(model.sizes))
        one = task(model, limits, lambda: groups)
        for name in (*names, "whole"):
            search = STAGES[name](one, search)
            assert search.is_proved or search.lower <= best.value
            assert model.value(search.incumbent) == search.cost >= best.value
            if search.cost > best.value:
                assert not search.is_proved
                assert all(
                    state in open_states for state, open_states in zip(best.states, search.open_states, strict=True)
                )
        assert search.is_proved
        assert search.cost == best.value


@pytest.mark.parametrize("seed", SEEDS)
def test_the_stages_agree_with_the_joint_search(seed):
    space = space_of(random_graph(seed), SearchOptions((2, 2), placements=("S", "S,R")[seed // 18 % 2]))
    assert joint(space, Limits()).cost == solved_graph(seed)[-1].value


@given(problems(fewest=0), st.data())
@settings(deadline=None)
def test_solving_what_is_live(problem, data):
    """No choice among the open states is better than what is found, nor is that worse than what was known."""
    model, search = DenseModel(problem), first(problem)
    open_states = tuple(
        tuple(sorted(data.draw(st.sets(st.integers(0, size - 1), min_size=1)))) for size in problem.sizes
    )
    search = replace(search, open_states=open_states, bounds=tuple(np.full(len(of), NO_BOUND) for of in open_states))
    found = solve_whole(task(model), search)
    among = [
        cost
        for states, cost in enumerated(problem).items()
        if all(state in of for state, of in zip(states, search.open_states_by_colour(model), strict=True))
    ]
    assert found.is_proved
    assert found.cost == found.lower == problem.value(found.incumbent) == min(search.cost, *among)
    assert found.order.complete


@pytest.mark.parametrize(
    "limits",
    [Limits(operations=0), Limits(memory_bytes=0), Limits(tuning=Tuning(table_entries=8))],
    ids=["operations", "memory", "entries"],
)
def test_what_does_not_fit_is_not_solved(limits):
    tables = Tables()
    problem = Problem(tables, (3, 3), (((0, 1), tables.intern(np.arange(9, dtype=np.int64).reshape(3, 3) % 5)),))
    assert solve_whole(task(DenseModel(problem)), first(problem)).is_proved
    assert not solve_whole(task(DenseModel(problem), limits), first(problem)).is_proved


@given(problems(fewest=0), st.sampled_from([1, 30]))
@settings(deadline=None)
def test_messages_bound_every_state(problem, sweeps):
    search = bound_by_messages(task(DenseModel(problem), Limits(tuning=Tuning(sweeps=sweeps))), first(problem))
    assert search.lower > NO_BOUND
    assert search.is_proved or all((bounds > NO_BOUND).all() for bounds in search.bounds)
    assert_true_of(search, problem)


@pytest.mark.parametrize("scale", [1, 2, 3])
def test_messages_prove_a_chain(scale):
    model = Scaled(chain(), scale)
    search = bound_by_messages(task(model), first(chain()))
    assert search.cost == search.lower == least(chain()) < first(chain()).cost


@pytest.mark.parametrize("scale", [1, 2, 3])
def test_bounds_of_messages_are_rounded_up(scale):
    """Three variables of which two are alike, which costs 10: messages do not tell."""
    tables = Tables()
    alike = tables.intern(np.eye(2, dtype=np.int64) * 10)
    triangle = Problem(tables, (2, 2, 2), tuple((pair, alike) for pair in ((0, 1), (0, 2), (1, 2))), 5)
    search = bound_by_messages(task(Scaled(triangle, scale)), first(triangle))
    assert (search.cost, search.lower) == (15, 5)


@pytest.mark.parametrize("seed", SEEDS)
def test_messages_bound_the_plans_of_random_graphs(seed):
    """Shared fetches count `scale` times in the pairwise view; the bound is of plans."""
    model, start, _, best = solved_graph(seed)
    before = SearchState.of_choice(model, start)
    search = bound_by_messages(task(model), before)
    assert search.cost / 2 < search.lower <= best.value or search.is_proved
