"""Max-min fairness: cases worked out by hand, and the property that defines it."""

import pytest
from hypothesis import given, settings, strategies as st

from simulator.fairness import ActivityClass, Solver, rate as rate_of


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


@pytest.mark.parametrize(
    ("capacities", "activities", "expected"),
    [
        # two flows leave by an uplink of 10; a third stays within its own link of 8, which the second also uses: at a
        # common rate of 4 the link of 8 is full: second and third stop there; the first takes 10 - 4 = 6
        ([10, 8], [([(0, 1)], None), ([(0, 1), (1, 1)], None), ([(1, 1)], None)], [6, 4, 4]),
        # three flows on a link of 12 would have 4 each; one can only do 2, so the others share 10
        ([12], [([(0, 1)], 2), ([(0, 1)], None), ([(0, 1)], None)], [2, 5, 5]),
        ([12], [([(0, 1)], 7), ([(0, 1)], None)], [6, 6]),  # a cap that does not bind
        # a staged copy uses the bus (30) twice, a plain one once: 2 r + r = 30, both progress at 10
        ([30], [([(0, 2)], None), ([(0, 1)], None)], [10, 10]),
        # a link of 4 stops the staged copy at 4, which leaves 30 - 2 x 4 = 22 of the bus
        ([30, 4], [([(0, 2), (1, 1)], None), ([(0, 1)], None)], [4, 22]),
        ([], [([], 3.0)], [3.0]),
    ],
)
def test_rates_by_hand(capacities, activities, expected):
    assert rates(capacities, *activities) == pytest.approx(expected)


def test_counts_are_as_many_activities():
    single = rates([12, 5], *[([(0, 1)], None)] * 3, *[([(0, 1), (1, 1)], None)] * 2)
    classes = [ActivityClass(((0, 1.0),)), ActivityClass(((0, 1.0), (1, 1.0)))]
    assert fair_rates([12, 5], classes, [3, 2]) == pytest.approx([single[0], single[-1]])
    assert single == pytest.approx([2.4, 2.4, 2.4, 2.4, 2.4])


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


def used(capacities, classes, counts, shares):
    total = [0.0] * len(capacities)
    for kind, count, rate in zip(classes, counts, shares, strict=True):
        for resource, coefficient in kind.uses:
            total[resource] += coefficient * count * rate
    return total


@settings(deadline=None)
@given(situations())
def test_no_resource_beyond_capacity_and_everyone_has_a_bottleneck(situation):
    capacities, classes, _ = situation
    shares = fair_rates(*situation)
    total = used(*situation, shares)
    assert all(u <= capacity * (1 + 1e-9) for u, capacity in zip(total, capacities, strict=True))
    for kind, rate in zip(classes, shares, strict=True):
        at_cap = kind.cap is not None and rate >= kind.cap * (1 - 1e-9)
        fastest_on_full = any(
            total[r] >= capacities[r] * (1 - 1e-9)
            and all(
                other <= rate * (1 + 1e-9) for user, other in zip(classes, shares, strict=True) if r in dict(user.uses)
            )
            for r, _ in kind.uses
        )
        assert rate > 0
        assert kind.cap is None or rate <= kind.cap
        assert at_cap or fastest_on_full
