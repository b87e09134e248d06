"""Max-min fairness: cases worked out by hand, its defining properties, and linear programs as a twin."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from simulator.fairness import ActivityClass, Solver
from simulator.fairness import rate as rate_of


def fair_rates(capacities, classes, counts):
    """Rates of one activity of each class, where so many of each run."""
    solver = Solver(capacities)
    for kind in classes:
        solver.add(kind)
    running = sum(1 << number for number, count in enumerate(counts) if count)
    planes = [
        sum((count - 1 >> place & 1) << number for number, count in enumerate(counts))
        for place in range(max(counts, default=1).bit_length())
    ]
    levels = solver.levels(running, planes)
    return tuple(rate_of(kind, levels) for kind in classes)


def rates(capacities, *activities):
    """Rates of single activities, each (uses, cap)."""
    classes = [ActivityClass(tuple(uses), cap) for uses, cap in activities]
    return fair_rates(capacities, classes, [1] * len(classes))


def test_a_shared_uplink():
    # two flows leave by an uplink of 10; a third stays within its own link of 8, which the second also uses
    # at a common rate of 4 the link of 8 is full: second and third stop there; the first takes 10 - 4 = 6
    assert rates([10, 8], ([(0, 1)], None), ([(0, 1), (1, 1)], None), ([(1, 1)], None)) == pytest.approx([6, 4, 4])


def test_a_flow_with_its_own_cap():
    # three flows on a link of 12 would have 4 each; one can only do 2, so the others share 10
    assert rates([12], ([(0, 1)], 2), ([(0, 1)], None), ([(0, 1)], None)) == pytest.approx([2, 5, 5])


def test_a_cap_that_does_not_bind():
    assert rates([12], ([(0, 1)], 7), ([(0, 1)], None)) == pytest.approx([6, 6])


def test_coefficients():
    # a staged copy uses the bus (30) twice, a plain one once: 2 r + r = 30, both progress at 10
    assert rates([30], ([(0, 2)], None), ([(0, 1)], None)) == pytest.approx([10, 10])
    # a link of 4 stops the staged copy at 4, which leaves 30 - 2 x 4 = 22 of the bus
    assert rates([30, 4], ([(0, 2), (1, 1)], None), ([(0, 1)], None)) == pytest.approx([4, 22])


def test_counts_are_as_many_activities():
    single = rates([12, 5], *[([(0, 1)], None)] * 3, *[([(0, 1), (1, 1)], None)] * 2)
    classes = [ActivityClass(((0, 1.0),)), ActivityClass(((0, 1.0), (1, 1.0)))]
    assert fair_rates([12, 5], classes, [3, 2]) == pytest.approx([single[0], single[-1]])
    assert single == pytest.approx([2.4, 2.4, 2.4, 2.4, 2.4])


def test_only_a_cap():
    assert rates([], ([], 3.0)) == (3.0,)


def test_nothing_runs():
    assert fair_rates([1.0], [], []) == ()


@pytest.mark.parametrize(("uses", "cap"), [((), None), (((0, 0.0),), None), (((0, -1.0),), 1.0), (((0, 1.0),), 0.0)])
def test_rates_without_bound_are_refused(uses, cap):
    with pytest.raises(ValueError, match="expected"):
        ActivityClass(uses, cap)


amounts = st.floats(0.01, 100)


@st.composite
def situations(draw, most=6):
    capacities = draw(st.lists(amounts, min_size=1, max_size=4))
    uses = st.dictionaries(st.integers(0, len(capacities) - 1), amounts, max_size=len(capacities))
    drawn = draw(st.lists(st.tuples(uses, st.none() | amounts), min_size=1, max_size=most))
    classes = [ActivityClass(tuple(sorted(u.items())), cap if u else cap or 1.0) for u, cap in drawn]
    counts = draw(st.lists(st.integers(1, 3), min_size=len(classes), max_size=len(classes)))
    return capacities, classes, counts


def used(capacities, classes, counts, found):
    total = [0.0] * len(capacities)
    for kind, count, rate in zip(classes, counts, found, strict=True):
        for resource, coefficient in kind.uses:
            total[resource] += coefficient * count * rate
    return total


@settings(deadline=None)
@given(situations())
def test_no_resource_beyond_capacity_and_everyone_has_a_bottleneck(situation):
    capacities, classes, _ = situation
    found = fair_rates(*situation)
    total = used(*situation, found)
    assert all(u <= capacity * (1 + 1e-9) for u, capacity in zip(total, capacities, strict=True))
    for kind, rate in zip(classes, found, strict=True):
        at_cap = kind.cap is not None and rate >= kind.cap * (1 - 1e-9)
        fastest_on_full = any(
            total[r] >= capacities[r] * (1 - 1e-9)
            and all(
                other <= rate * (1 + 1e-9) for user, other in zip(classes, found, strict=True) if r in dict(user.uses)
            )
            for r, _ in kind.uses
        )
        assert rate > 0
        assert kind.cap is None or rate <= kind.cap
        assert at_cap or fastest_on_full


@settings(deadline=None)
@given(situations(), st.floats(1e-6, 1e6))
def test_scaling_capacities_and_caps_scales_rates(situation, factor):
    capacities, classes, counts = situation
    scaled = [ActivityClass(kind.uses, None if kind.cap is None else kind.cap * factor) for kind in classes]
    found = fair_rates([capacity * factor for capacity in capacities], scaled, counts)
    assert found == pytest.approx([rate * factor for rate in fair_rates(*situation)], rel=1e-9)


@settings(deadline=None)
@given(situations(), st.floats(1e-6, 1e6))
def test_a_resource_measured_in_other_units_changes_nothing(situation, factor):
    capacities, classes, counts = situation
    other = [ActivityClass(tuple((r, a * factor if r == 0 else a) for r, a in kind.uses), kind.cap) for kind in classes]
    found = fair_rates([capacities[0] * factor, *capacities[1:]], other, counts)
    assert found == pytest.approx(fair_rates(*situation), rel=1e-9)


def lexicographic(capacities, classes, counts):
    """Max-min rates by linear programs: raise the smallest rate, fix who cannot exceed it, repeat."""
    n = len(classes)
    usage = np.zeros((len(capacities), n))
    for i, (kind, count) in enumerate(zip(classes, counts, strict=True)):
        for resource, coefficient in kind.uses:
            usage[resource, i] = coefficient * count
    caps = [math.inf if kind.cap is None else kind.cap for kind in classes]
    fixed = {}
    while len(fixed) < n:
        rising = [i for i in range(n) if i not in fixed]
        # variables: n rates and the level t; maximise t with rate_i >= t for rising i
        constraints = np.hstack([usage, np.zeros((len(capacities), 1))])
        above = np.array([[-float(i == j) for j in range(n)] + [1.0] for i in rising])
        bounds = [(fixed.get(i, 0), fixed.get(i, caps[i])) for i in range(n)] + [(0, None)]
        result = linprog(
            [0.0] * n + [-1.0],
            A_ub=np.vstack([constraints, above]),
            b_ub=np.concatenate([capacities, np.zeros(len(rising))]),
            bounds=bounds,
        )
        assert result.status == 0, result.message
        level = result.x[-1] * (1 - 1e-9)
        for i in rising:
            low = [(fixed[j], fixed[j]) if j in fixed else (level, caps[j]) for j in range(n)]
            alone = linprog([-float(j == i) for j in range(n)], A_ub=usage, b_ub=capacities, bounds=low)
            assert alone.status == 0, alone.message
            if alone.x[i] <= level * (1 + 1e-6):
                fixed[i] = level
    return [fixed[i] for i in range(n)]


comfortable = st.integers(1, 8).map(float)  # figures that a linear program's tolerances can tell apart


@st.composite
def small_situations(draw):
    capacities = draw(st.lists(comfortable, min_size=1, max_size=3))
    uses = st.dictionaries(st.integers(0, len(capacities) - 1), comfortable, min_size=1, max_size=3)
    drawn = draw(st.lists(st.tuples(uses, st.none() | comfortable), min_size=1, max_size=4))
    classes = [ActivityClass(tuple(sorted(u.items())), cap) for u, cap in drawn]
    counts = draw(st.lists(st.integers(1, 2), min_size=len(classes), max_size=len(classes)))
    return capacities, classes, counts


@settings(deadline=None, max_examples=60)
@given(small_situations())
def test_equal_to_lexicographic_linear_programs(situation):
    assert fair_rates(*situation) == pytest.approx(lexicographic(*situation), rel=1e-4)
