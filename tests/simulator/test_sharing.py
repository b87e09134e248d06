"""Activities in simulated time: staggered starts by hand, and exact fractions as a twin."""

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from simpy import Environment

from simulator.fairness import ActivityClass, Solver
from simulator.sharing import Sharing
from tests.simulator import fluid

LINK = ActivityClass(((0, 1.0),))


def ends_of(capacities, activities):
    """When each (start, class, work) ends."""
    environment = Environment()
    sharing = Sharing(environment, capacities)
    ends = [None] * len(activities)

    def note(i):
        ends[i] = environment.now

    for i, (start, kind, work) in enumerate(activities):
        number = sharing.number(kind)
        sharing.after(start, lambda i=i, number=number, work=work: sharing.start(number, work, lambda: note(i)))
    environment.run()
    return ends


@pytest.mark.parametrize(
    ("capacity", "activities", "expected"),
    [
        # a link of 10; A of 30 from 0, B of 20 from 2. A has 20 by 2 alone, then both at 5: A ends at 4; B then has 10
        # of its 20 left and the link alone: 5
        (10, [(0, LINK, 30), (2, LINK, 20)], [4, 5]),
        # one activity capped at 2 with 8 to do, the other with 36: 8 / s until 4 (32), then 10 / s: 4.4
        (10, [(0, ActivityClass(((0, 1.0),), 2), 8), (0, LINK, 36)], [4, 4.4]),
        # a bus of 30 shared by a staged copy (twice) and a plain one: both at 10; the plain one ends at 2, then 15 / s:
        # the staged copy has 20 of 50 by 2, and needs 30 / 15 = 2 more
        (30, [(0, ActivityClass(((0, 2.0),)), 50), (0, LINK, 20)], [4, 2]),
        (10, [(0, LINK, 5)] * 8, [4] * 8),
        (10, [(1, LINK, 10), (0, LINK, 10)], [2, 1]),  # the first starts before it is known that the second ended
    ],
)
def test_ends_by_hand(capacity, activities, expected):
    assert ends_of([capacity], activities) == pytest.approx(expected)


def batch_ends(capacities, kinds, work, begin_s=0.0):
    """When each place of one batch ends."""
    environment = Environment(begin_s)
    sharing = Sharing(environment, capacities)
    ends = [None] * len(kinds)

    def note(places):
        for place in places.tolist():
            assert ends[place] is None
            ends[place] = environment.now - begin_s

    sharing.start_many(np.array([sharing.number(kind) for kind in kinds]), np.array(work), note)
    environment.run()
    return ends


@pytest.mark.parametrize("others", [0, 20])
def test_a_batch_may_have_several_of_a_class(others):
    # a link of 10: two of 10 have 5 each until 2, then nothing is left; a third of 25 has had 10 and goes on alone
    own = [ActivityClass(((n + 1, 1.0),)) for n in range(others)]
    kinds, work = [LINK, LINK, LINK, *own], [10.0, 10.0, 25.0, *[7.0] * others]
    expected = [3.0, 3.0, 4.5, *[7.0] * others]
    assert batch_ends([10.0, *[1.0] * others], kinds, work) == pytest.approx(expected)


def test_slow_ones_that_start_late_take_their_time():
    assert batch_ends([1e-9], [LINK], [1e-9], begin_s=1e4) == pytest.approx([1.0], rel=1e-9)


def test_what_is_as_good_as_unlimited_takes_no_time():
    fast = ActivityClass((), math.inf)
    ends = ends_of([1e305], [(0, fast, 5), (0, LINK, 7), (0, LINK, 9), (1, LINK, 0)])
    assert ends == pytest.approx([0, 0, 0, 1], abs=1e-290)


def test_one_may_start_another_when_it_ends():
    environment = Environment()
    sharing = Sharing(environment, [10.0])
    number = sharing.number(LINK)
    ends = []

    def again():
        ends.append(environment.now)
        if len(ends) < 3:
            sharing.start(number, 10, again)

    sharing.start(number, 10, again)
    environment.run()
    assert ends == pytest.approx([1, 2, 3])


def test_calls_after_the_same_delay_keep_their_order():
    environment = Environment()
    sharing = Sharing(environment, [1.0])
    seen = []
    for i in range(5):
        sharing.after(1.5, lambda i=i: seen.append((environment.now, i)))
    environment.run()
    assert seen == [(1.5, i) for i in range(5)]


def test_rates_of_a_situation_are_worked_out_once(monkeypatch):
    solved = []

    class Counting(Solver):
        def levels(self, *situation):
            solved.append(situation)
            return super().levels(*situation)

    monkeypatch.setattr("simulator.sharing.Solver", Counting)
    both = ActivityClass(((0, 1.0), (1, 1.0)))
    rounds = [(10 * i, kind, 10 * n) for i in range(50) for n, kind in ((1, LINK), (2, both))]
    ends_of([10, 10], rounds)
    assert len(solved) == 2  # both run, the second alone


@st.composite
def arrivals(draw):
    def quarters(least, most):
        return st.integers(4 * least, 4 * most).map(lambda n: n / 4)

    capacities = draw(st.lists(quarters(1, 10), min_size=1, max_size=3))
    uses = st.dictionaries(st.integers(0, len(capacities) - 1), quarters(1, 4), min_size=1)
    kinds = draw(st.lists(st.tuples(uses, st.none() | quarters(1, 5)), min_size=1, max_size=3))
    classes = [ActivityClass(tuple(sorted(u.items())), cap) for u, cap in kinds]
    arrival = st.tuples(quarters(0, 3), st.sampled_from(classes), quarters(1, 20))
    return capacities, draw(st.lists(arrival, min_size=1, max_size=8))


def exactly(case):
    capacities, activities = case
    return fluid.ends(capacities, [(start, (dict(kind.uses), kind.cap), work) for start, kind, work in activities])


@settings(deadline=None)
@given(arrivals())
def test_equal_to_exact_fractions(case):
    assert ends_of(*case) == pytest.approx(exactly(case), rel=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_equal_to_exact_fractions_on_trees(seed):
    """Many at once, of few classes and of many sizes, so that several of one class run and filling goes on midway."""
    chance = random.Random(seed)
    capacities = [chance.randint(5, 20) for _ in range(10)]
    kinds = [
        ActivityClass(
            tuple((r, chance.choice([1.0, 1.0, 0.5, 3.0])) for r in sorted(chance.sample(range(10), 3))),
            chance.choice([None, None, 2.5]),
        )
        for _ in range(7)
    ]
    activities = [(chance.choice([0, 0, 1.5, 4]), chance.choice(kinds), chance.randint(1, 60)) for _ in range(24)]
    assert ends_of(capacities, activities) == pytest.approx(exactly((capacities, activities)), rel=1e-9)


def test_many_started_at_once_are_as_many_started_one_by_one():
    environment = Environment()
    sharing = Sharing(environment, [10, 10])
    numbers = np.array([sharing.number(ActivityClass(((r, 1.0),))) for r in (0, 1)])
    ended = []

    def start(work):
        sharing.start_many(
            numbers, np.array(work, float), lambda slots: ended.append((environment.now, slots.tolist()))
        )

    start([20, 40])
    start([20, 20])
    environment.run()
    # link 0: both end at 4; link 1: the second at 4, then 20 are left at 10 per second
    assert ended == [(4, [0]), (4, [0, 1]), (6, [1])]
