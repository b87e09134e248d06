"""Messages that depend on hubs: what they say of the optimum holds, and closes what single messages leave open."""

from itertools import product

import numpy as np
import pytest
from planner.search.minsum import bounded, hubs
from planner.search.minsum.bounds import SCALE_BITS, Bound
from planner.search.minsum.conditioned import Conditioned, Hubs
from planner.search.minsum.hubs import around_hubs
from planner.search.minsum.model import Dense
from planner.search.minsum.problem import Problem

from planner.search import Limits
from planner.search.costs.tables import Tables

SEEDS = range(40)


def random_problem(seed):
    """Five variables of two to four states, with costs of their own and terms between two of three pairs of them."""
    random = np.random.default_rng(seed)
    sizes = tuple(random.integers(2, 5, 5).tolist())
    tables, pairs = Tables(), [(u, v) for v in range(5) for u in range(v) if random.random() < 2 / 3]
    scopes = [(v,) for v in range(5)] + pairs
    terms = [(s, tables.intern(random.integers(0, 50, [sizes[v] for v in s]))) for s in scopes]
    return Problem(tables, sizes, tuple(terms), int(random.integers(0, 9)))


def scaled(problem, bits=SCALE_BITS):
    tables = Tables()
    terms = tuple((scope, tables.intern(problem.tables[number] << bits)) for scope, number in problem.terms)
    return Problem(tables, problem.sizes, terms, problem.constant << bits)


def costs(problem):
    """The cost of every choice, [state of each variable]."""
    return np.array([problem.value(states) for states in product(*map(range, problem.sizes))]).reshape(problem.sizes)


def silent(problem):
    return {scope: [np.zeros(problem.sizes[v]) for v in scope] for scope, _ in problem.terms if len(scope) == 2}


def swept(messages, sweeps):
    for _ in range(sweeps):
        messages.sweep()
    return messages


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("sweeps", [0, 1, 12])
def test_no_choice_costs_less_than_its_bound(seed, sweeps):
    problem = random_problem(seed)
    random = np.random.default_rng(seed + 1000)
    chosen = sorted(random.choice(5, 2, replace=False).tolist())
    of = {v: chosen[int(random.integers(2))] for v in range(5) if v not in chosen and random.random() < 0.8}
    case = {hub: random.integers(0, 3, problem.sizes[hub]) for hub in chosen}
    case = {hub: np.unique(of_states, return_inverse=True)[1] for hub, of_states in case.items()}
    found = swept(Conditioned(scaled(problem), Hubs(of, case), silent(problem)), sweeps)
    every = costs(problem)
    assert found.value() <= every.min()
    for v, bounds in enumerate(found.of_states()):
        assert (bounds <= every.min(axis=tuple(u for u in range(5) if u != v))).all()


def triangle(times=1):
    """Three variables that cost nothing only if each differs from the next and is the same as it: two mixed do."""
    tables = Tables()
    differ = tables.intern(np.eye(2, dtype=np.int64) * 10 * times)
    return Problem(tables, (2, 2, 2), (((0, 1), differ), ((0, 2), differ), ((1, 2), differ)))


def test_a_hub_closes_a_loop():
    problem = triangle()
    assert swept(Bound(problem), 50).value() == 0
    known = Hubs({1: 0, 2: 0}, {0: np.array([0, 1])})
    assert swept(Conditioned(scaled(problem), known, silent(problem)), 50).value() == 10 == costs(problem).min()


def test_states_of_one_case_are_not_told_apart():
    known = Hubs({1: 0, 2: 0}, {0: np.array([0, 0])})
    assert swept(Conditioned(scaled(triangle()), known, silent(triangle())), 50).value() == 0


def necklace(beads):
    """A chain of variables that had better be alike, each in a triangle of its own: every triangle costs 10."""
    tables = Tables()
    differ, alike = tables.intern(np.eye(2, dtype=np.int64) * 10), tables.intern(10 - np.eye(2, dtype=np.int64) * 10)
    loops = [(first + u, first + v) for first in range(0, 3 * beads, 3) for u, v in ((0, 1), (0, 2), (1, 2))]
    links = [(first, first + 3) for first in range(0, 3 * beads - 3, 3)]
    terms = [(scope, differ) for scope in loops] + [(scope, alike) for scope in links]
    return Problem(tables, (2,) * 3 * beads, tuple(terms), 5)


def test_hubs_are_found_and_prove_a_chain_of_loops():
    problem = necklace(4)
    bound = swept(Bound(problem), 20)
    best = (0, 0, 1) * 4
    assert bound.value() == 5
    assert bound.pays(best).sum() == 40 << SCALE_BITS
    found, variables = around_hubs(bound, best, [v % 3 for v in range(12)])
    assert variables == list(range(12))
    assert swept(found, 50).value() == 45 == problem.value(best) == costs(problem).min()


def test_a_choice_that_pays_nothing_needs_no_hubs():
    tables = Tables()
    problem = Problem(tables, (2, 2), (((0, 1), tables.intern(np.array([[0, 3], [4, 5]]))),))
    assert around_hubs(swept(Bound(problem), 5), (0, 0), (0, 0)) is None


@pytest.mark.parametrize("seed", SEEDS)
def test_a_part_and_the_bound_of_the_others_are_a_bound(seed):
    problem = random_problem(seed)
    bound = swept(Bound(problem), 3)
    whole = bound.value()
    part, messages = bound.part((0, 2, 3))
    every = costs(problem)
    least = np.array([part.value(states) for states in product(*map(range, part.sizes))]).min()
    assert whole <= -(-int(least) >> SCALE_BITS) <= every.min()
    assert Conditioned(part, Hubs({}, {}), messages).value() == whole


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_choice_pays_is_what_is_open(seed):
    problem = random_problem(seed)
    bound, states = swept(Bound(problem), 3), tuple(size - 1 for size in problem.sizes)
    open_ = problem.value(states) - bound.pays(states).sum() / 2**SCALE_BITS
    assert bound.value() - 1 < open_ <= bound.value()


@pytest.fixture
def messages_alone(monkeypatch):
    """Nothing is solved exactly or contracted, and choices are not improved: what is proved comes from messages."""
    for name in ("EXACT_OPERATIONS", "CONTRACTED_OPERATIONS", "CLOSE", "FEW_STATES_LEFT"):
        monkeypatch.setattr(bounded, name, 0)


@pytest.mark.usefixtures("messages_alone")
@pytest.mark.parametrize(("sweeps", "bound"), [(0, 5), (30, 25)])
def test_the_search_closes_loops_whose_hubs_look_alike(monkeypatch, sweeps, bound):
    """Those of the two beads in the middle of four."""
    monkeypatch.setattr(bounded, "CONDITIONED_SWEEPS", sweeps)
    problem = necklace(4)
    found = bounded.Tightening(Dense(problem), Limits(), [(0, 0, 1) * 4]).run()
    assert found.value == 45
    assert found.bound == bound


@pytest.mark.usefixtures("messages_alone")
@pytest.mark.parametrize("cases", [2, 3, 16])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_search_with_hubs_is_right(monkeypatch, seed, cases):
    monkeypatch.setattr(hubs, "CASES", cases)
    monkeypatch.setattr(hubs, "TIED", 0.5)
    monkeypatch.setattr(bounded, "SWEEPS", 1)
    problem = random_problem(seed)
    found = bounded.Tightening(Dense(problem), Limits()).run()
    assert found.bound <= costs(problem).min() <= found.value == problem.value(found.states)


def test_a_view_that_did_not_fit_is_tried_again_once_much_is_gone(monkeypatch):
    tried = []
    order = bounded.lockstep_order
    monkeypatch.setattr(bounded, "lockstep_order", lambda *a, **k: tried.append(a) or order(*a, **k))
    search = bounded.Tightening(Dense(necklace(4)), Limits(operations=1))
    for _ in range(2):
        search._solve_view(1)
    assert len(tried) == 1
    search._left.kept[0] = search._left.kept[1] = (0,)
    search._solve_view(1)
    assert len(tried) == 2
