"""The theorems of SoyBean and Tofu as a table of statements; `try_statement` tries one on random cases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from results.theorems import trials
from results.theorems.trials import Draw, Trial


@dataclass(frozen=True, slots=True)
class Statement:
    """What a source says, in one line; `account` is how costs are counted and on what; `holds` what we expect."""

    source: str
    says: str
    account: str
    holds: bool
    draw: Draw
    draws: int = 200


@dataclass(frozen=True, slots=True)
class Verdict:
    """What trying a statement showed; the counter-example is the smallest among those drawn, `seed` draws it again."""

    source: str
    says: str
    account: str
    draws: int
    held: int
    worst_ratio: float
    seed: int | None
    counter_example: str | None


LEMMA, TOFU_3, TOFU_4, TOFU_5 = "Tofu Lemma 2", "Tofu Th. 3", "Tofu Th. 4", "Tofu Th. 5"
SOYBEAN_1, SOYBEAN_2, RISING = "SoyBean Th. 1", "SoyBean Th. 2", "Tofu Th. 4, SoyBean Th. 3"
ALIGNED, LEVELS, PLACED = "SoyBean Fig. 6", "SoyBean eq. 4, 5", "SoyBean Sec 5.1, Tofu Sec 5.2"

WEIGHTED = "a step's cost is a weighted sum of tensor sizes"
SUM = "the total is the sum of the steps' costs"
FLAT = "tiles are fixed by how often each dimension is cut"
ORDER = "the order of the steps does not change the total"
ALIKE = "all steps cost the same and cut alike"
RISE = "no step costs less than the one before"
BEST = "the recursion is optimal"
ONE_CUT = "DP over breadth-first levels finds the optimum"
NO_WORSE = "the recursion is no worse than one k-way step"
STRATEGIES = "aligned tilings are the strategies TDL finds"


def sharded(draw: Callable[..., Trial]) -> Draw:
    """Return what draws cases in which nothing is replicated."""
    return partial(draw, replicate=False)


def replicated(draw: Callable[..., Trial]) -> Draw:
    """Return what draws cases in which tensors may be replicated."""
    return partial(draw, replicate=True)


STATEMENTS = (
    Statement(LEMMA, WEIGHTED, "one step, products", True, trials.lemma_2_on_products),
    Statement(LEMMA, WEIGHTED, "one step, windows", False, trials.lemma_2_on_windows),
    Statement(SOYBEAN_1, SUM, "steps as in Lemma 2, against bytes moved", False, trials.total_of_stored_shares),
    Statement(SOYBEAN_1, SUM, "steps with extra inputs, against bytes moved", True, trials.steps_with_extra_inputs),
    Statement(SOYBEAN_2, FLAT, "contiguous tiles", True, partial(trials.flattening, tiles_of=trials.contiguous_tiles)),
    Statement(SOYBEAN_2, FLAT, "digits", False, partial(trials.flattening, tiles_of=trials.digit_tiles)),
    Statement(
        SOYBEAN_2,
        FLAT,
        "digits, but for the indices' numbering",
        True,
        partial(trials.flattening, tiles_of=trials.digit_tiles_renumbered),
    ),
    Statement(TOFU_3, ORDER, "as in Lemma 2, S", True, trials.commutes_believed),
    Statement(TOFU_3, ORDER, "as in Lemma 2, S,R", False, trials.commutes_believed_replicated),
    Statement(TOFU_3, ORDER, "bytes moved, contiguous tiles, S", False, trials.commutes_contiguous),
    Statement(TOFU_3, ORDER, "bytes moved, digits, S,R", True, trials.commutes_counted),
    Statement(TOFU_3, ORDER, "bytes moved, digits, windows", False, trials.commutes_windows),
    Statement(TOFU_3, ORDER, "bytes moved, digits, uneven extents", False, trials.commutes_uneven),
    Statement(TOFU_4, ALIKE, "as in Lemma 2, S", True, trials.every_step_chops_alike, 40),
    Statement(RISING, RISE, "with extra inputs, perceptrons, S", True, sharded(trials.steps_rise), 300),
    Statement(RISING, RISE, "with extra inputs, perceptrons, S,R", False, replicated(trials.steps_rise), 900),
    Statement(
        RISING,
        RISE,
        "with extra inputs, two factorisations, S",
        False,
        trials.steps_rise_between_factorisations,
        4,
    ),
    Statement(TOFU_5, BEST, "as in Lemma 2, S", True, sharded(trials.optimal_in_its_own_account), 60),
    Statement(TOFU_5, BEST, "as in Lemma 2, S,R", False, replicated(trials.optimal_in_its_own_account), 60),
    Statement(
        TOFU_5,
        BEST,
        "charged as in Lemma 2, bytes moved, S",
        False,
        sharded(trials.optimal_at_its_word),
        60,
    ),
    Statement(
        TOFU_5,
        BEST,
        "charged as in Lemma 2, bytes moved, S,R",
        False,
        replicated(trials.optimal_at_its_word),
        60,
    ),
    Statement(
        TOFU_5,
        BEST,
        "with extra inputs, bytes moved, S",
        False,
        sharded(trials.optimal_with_extra_inputs),
        600,
    ),
    Statement(
        TOFU_5,
        BEST,
        "with extra inputs, bytes moved, S,R",
        False,
        replicated(trials.optimal_with_extra_inputs),
        300,
    ),
    Statement(TOFU_5, NO_WORSE, "bytes moved, S", True, sharded(trials.no_worse_than_one_step), 300),
    Statement(TOFU_5, NO_WORSE, "bytes moved, S,R", False, replicated(trials.no_worse_than_one_step), 300),
    Statement(
        "Tofu Sec 5.2",
        "a 4-way step is two steps with one choice",
        "bytes moved, S,R",
        True,
        trials.one_step_is_two_alike,
    ),
    Statement(LEVELS, ONE_CUT, "two devices, R and C", True, partial(trials.levels_are_elimination, tilings="RC"), 60),
    Statement(
        LEVELS, ONE_CUT, "two devices, R, C and r", True, partial(trials.levels_are_elimination, tilings="RCr"), 60
    ),
    Statement(ALIGNED, STRATEGIES, "einsum", True, trials.aligned_are_strategies, 60),
    Statement(ALIGNED, STRATEGIES, "windows", False, trials.aligned_are_strategies_of_windows, 9),
    Statement(PLACED, "steps and levels have the same total", "bytes moved, S,R", True, trials.levels_add_up),
    Statement(PLACED, "a step's cost is what crosses its level", "bytes moved, S", False, trials.step_is_level),
    Statement(
        PLACED,
        "where steps rise, the top level is crossed least",
        "bytes moved, S",
        False,
        trials.rising_steps_load_the_top_least,
        60,
    ),
)


def try_statement(statement: Statement, draws: int | None = None) -> Verdict:
    """Try a statement on its number of cases, or on fewer."""
    count = statement.draws if draws is None else min(draws, statement.draws)
    cases = [statement.draw(Random(number)) for number in range(count)]
    failed = [number for number, trial in enumerate(cases) if not trial.holds]
    smallest = min(failed, key=lambda number: cases[number].size, default=None)
    return Verdict(
        statement.source,
        statement.says,
        statement.account,
        count,
        count - len(failed),
        round(max(trial.ratio for trial in cases), 3),
        smallest,
        None if smallest is None else cases[smallest].what(),
    )
