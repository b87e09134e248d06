"""Scores, operations and sizes against SciPy, NumPy, enumeration and what was published."""

import random
from statistics import mean

import numpy as np
import pytest
import scipy.stats

from planner.models import llama, transformer
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


def test_percentiles_are_numpys():
    for count in (1, 2, 7, 100):
        values = [drawn.random() for _ in range(count)]
        for share in (0.0, 0.5, 0.9, 1.0):
            assert scores.percentile(values, share) == pytest.approx(np.quantile(values, share))


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


BILLIONS = {
    "llama-2-7b": 6.74, "llama-2-13b": 13.02, "llama-2-70b": 68.98, "llama-3.1-8b": 8.03, "llama-3.1-70b": 70.55,
    "llama-3.1-405b": 405.85, "llama-3.2-1b": 1.24, "llama-3.2-3b": 3.21, "mistral-7b": 7.24, "qwen2.5-7b": 7.62,
    "qwen2.5-72b": 72.7, "gpt2-xl": 1.56, "gpt2-large": 0.77, "opt-1.3b": 1.3, "opt-66b": 66.0, "gpt3-175b": 175.0,
    "bloom-176b": 176.2, "gpt-neox-20b": 20.6, "megatron-22b": 22.0, "megatron-1t": 1008.0, "mt-nlg-530b": 530.0,
    "nemotron-340b": 340.0, "bert-large": 0.335, "mpt-30b": 30.0,
}  # fmt: skip
"""Parameters as published, or as the weights that are published count."""


@pytest.mark.parametrize("name", BILLIONS)
def test_sizes_have_the_published_number_of_parameters(name):
    size = size_of(Row(1, model=name))
    tables = size.vocabulary * size.hidden * (1 if size.tied else 2)
    assert (size.layers * size.layer_weights + tables) / 1e9 == pytest.approx(BILLIONS[name], rel=0.025)


def test_sizes_are_the_zoos():
    for name, size in {**transformer.SIZES, **llama.SIZES}.items():
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
