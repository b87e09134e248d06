"""Scores, operations and sizes against SciPy, NumPy, enumeration and what was published."""

import random
from statistics import mean

import numpy as np
import pytest
import scipy.stats

from planner.models import llama, sequences
from results.scoreboard import scores
from results.scoreboard.row import Row
from results.scoreboard.scores import Timed
from results.scoreboard.sizes import known_sizes, size_of

drawn = random.Random(0)


def pairs(count, values):
    return [(float(drawn.choice(values)), float(drawn.choice(values))) for _ in range(count)]


@pytest.mark.parametrize("values", [range(1, 100), range(1, 4)], ids=["hardly any tie", "many ties"])
@pytest.mark.parametrize("count", [2, 3, 10, 40])
def test_tau_is_scipys(count, values):
    for _ in range(20):
        drawn_pairs = pairs(count, values)
        expected = scipy.stats.kendalltau(*zip(*drawn_pairs, strict=True)).statistic
        tau = scores.kendall(drawn_pairs)
        assert (tau is None) == np.isnan(expected)
        assert tau is None or tau == pytest.approx(expected)


def test_regret_by_hand():
    assert scores.regret([(2.0, 5.0), (1.0, 6.0), (4.0, 7.0)]) == 1.0  # the first is chosen, the second is fastest
    assert scores.regret([(1.0, 5.0), (2.0, 6.0)]) == 0.0
    assert scores.regret([(1.0, 5.0), (2.0, 5.0)]) == 0.5  # either may be chosen


def test_ranking_is_within_groups_by_sample():
    rows = [Timed("a", 1, 1.0, 10.0), Timed("a", 2, 1.0, 12.0), Timed("b", 1, 5.0, 1.0), Timed("b", 1, 6.0, 0.9)]
    ranked = scores.ranking([*rows, Timed("alone", 1, 1.0, 1.0)])
    assert ranked["groups"] == 2
    assert ranked["tau"] == mean([1.0, -1.0])  # of a the second is faster a sample, as predicted
    assert ranked["regret_mean"] == pytest.approx(mean([0.0, 0.2]))


def test_errors_of_times():
    rows = [Timed("a", 1, 1.0, 1.1), Timed("a", 1, 2.0, 1.4)]
    errors = scores.times(rows)
    assert errors["error_mean"] == pytest.approx(0.2)
    assert errors["bias_mean"] == pytest.approx(-0.1)
    assert errors["same_batch"]["groups"] == 1
    assert scores.times([]) == {"rows": 0}


def test_the_constant_rate_is_the_best_of_all():
    for _ in range(20):
        measured = [(drawn.uniform(0.1, 10), drawn.uniform(0.1, 10)) for _ in range(9)]

        def loss(factor, measured=measured):
            return mean(abs(factor * amount / seconds - 1) for seconds, amount in measured)

        least = loss(scores.constant_rate(measured))
        assert all(
            least <= loss(seconds / amount * near) + 1e-12 for seconds, amount in measured for near in (0.9, 1, 1.1)
        )


def test_verdicts():
    verdicts = scores.verdicts([(True, True), (True, False), (False, False), (False, False), (False, True)])
    assert verdicts == {"rows": 5, "right": 3, "of_those_that_ran": [1, 2], "of_those_out_of_memory": [2, 3]}


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "batch"), [(24, 2304, 24, 512), (96, 12288, 96, 64), (128, 25600, 160, 3072)]
)
def test_operations_are_narayanans(layers, hidden, heads, batch):
    """96 B s l h^2 (1 + s / 6h + V / 16lh) with everything computed again (Narayanan et al., 2021, Eq. 3)."""
    sequence, vocabulary = 2048, 51200
    size = size_of(Row(1, layers=layers, hidden=hidden, heads=heads, sequence=sequence, vocabulary=vocabulary))
    factor = 1 + sequence / (6 * hidden) + vocabulary / (16 * layers * hidden)
    assert size.hardware_flop(batch, "full") == pytest.approx(96 * batch * sequence * layers * hidden**2 * factor)
    assert size.model_flop(batch) < size.hardware_flop(batch, "selective") < size.hardware_flop(batch, "full")


def test_sizes_are_the_zoos():
    for name, size in {**sequences.SIZES, **llama.SIZES}.items():
        known = known_sizes()[name.replace("-", "")]
        assert (known.layers, known.hidden, known.heads, known.vocabulary) == (
            size.layers,
            size.width,
            size.heads,
            size.vocabulary,
        )
        assert known.sequence == size.sequence
        assert known.ffn == getattr(size, "hidden", 4 * size.width)
        assert known.kv_heads == getattr(size, "groups", size.heads)
