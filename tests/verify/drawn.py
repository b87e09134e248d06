"""Shapes that Hypothesis draws, each once, until every strategy of an operator has been split on enough of them.

Everything that may change a shape is drawn by Hypothesis, and nothing else: it then knows which cases it has had, and
turns to others. Values follow from what was drawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations, permutations
from typing import Any
from zlib import crc32

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings, strategies as st
from operator_verification.application import Application, Check

from executor.cases import Case, Draw, Generate
from executor.kernels import Kernel
from tdl import Description, Operator

LEAST = 50
"""Distinct shapes on which every strategy is split."""

ROUNDS = (85, 85, 85, 85, 360, 720, 1440)
"""Cases drawn at a time."""

QUIET = settings(
    deadline=None,
    database=None,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)

Name = tuple[str, str | None]
Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Drawn(Draw):
    """Sizes and choices that Hypothesis draws, so that it finds the smallest failing shape."""

    choose: Callable[[st.SearchStrategy[Any]], Any]

    def size(self, low=2, high=5):
        drawn = self.choose(_one_of(low, high))
        self.generator.bit_generator.advance(drawn - low + 1)
        return drawn

    def sizes(self, count, low=2, high=5):
        return _digits(self.size(0, (high - low + 1) ** count - 1), count, low, high)

    def shape(self, least=1, most=4, low=2, high=4):
        ranks = range(least, most + 1)
        number = self.size(0, sum((high - low + 1) ** rank for rank in ranks) - 1)
        for rank in ranks:
            if number < (high - low + 1) ** rank:
                return _digits(number, rank, low, high)
            number -= (high - low + 1) ** rank
        raise AssertionError

    def flag(self):
        return self.choose(_one_of(0, 1)) == 1

    def subset(self, count, low=0):
        ways = list(permutations(range(count), self.size(low, count)))
        return ways[self.size(0, len(ways) - 1)]

    def ascending(self, count, number):
        ways = list(combinations(range(count), number))
        return ways[self.size(0, len(ways) - 1)]


def _digits(number, count, low, high):
    """Digits from low to high of a number, most significant first."""
    ways = high - low + 1
    return tuple(low + number // ways**place % ways for place in reversed(range(count)))


@cache
def _one_of(low, high):
    return st.sampled_from(range(low, high + 1))


@st.composite
def cases(draw, generate: Generate) -> Case:
    return generate(Drawn(np.random.default_rng(0), draw))


@dataclass(slots=True)
class Shapes:
    """The shapes that have been drawn of one operator, and on how many of them each strategy was split.

    Two cases are of one shape if shapes, extents of all index variables, and the indices that are read and written
    are equal: an attribute that changes none of these, such as a learning rate, makes no other shape.
    """

    single: frozenset[str] = frozenset()
    """Variables of extent 1 whatever the shape: there is nothing to split."""
    drawn: set[Key] = field(default_factory=set)
    split: dict[Name, int] = field(default_factory=dict)
    maps: dict[Any, int] = field(default_factory=dict)

    def key(self, description: Description, operands: Iterable[np.ndarray], extents: dict[str, int]) -> Key:
        indices = (description.accesses, tuple(output.index for output in description.outputs))
        number = self.maps.setdefault(indices, len(self.maps))
        return number, tuple(operand.shape for operand in operands), tuple(extents.items())

    def wanted(self, description: Description, extents: dict[str, int], key: Key) -> list[str]:
        """Return the strategies to be split on this shape: of a new one, those split on too few so far."""
        for strategy in description.strategies.values():
            if strategy.variable not in self.single:
                self.split.setdefault((strategy.variable, strategy.reducer), 0)
        if key in self.drawn:
            return []
        return [
            name
            for name, strategy in description.strategies.items()
            if extents[name] > 1 and self.split[name, strategy.reducer] < LEAST
        ]

    def note(self, description: Description, key: Key, done: Sequence[str]) -> None:
        self.drawn.add(key)
        for name in done:
            self.split[name, description.strategies[name].reducer] += 1

    @property
    def least(self) -> int:
        """On how many shapes the strategy was split that was split on the fewest; without one, shapes."""
        return min(self.split.values(), default=len(self.drawn))


def described(operator: Operator, case: Case) -> tuple[Description, dict[str, int]]:
    """An operator's description for a case, and the extents there."""
    description = operator.describe([operand.ndim for operand in case.operands], case.attributes)
    return description, description.extents([operand.shape for operand in case.operands], case.attributes)


def applied(operator: Operator, case: Case, kernel: Kernel) -> Application:
    """What checks need of one case."""
    return Application(operator, kernel, case)


Checks = Callable[[Application, Sequence[str], int], Iterable[Check]]
"""The checks of some strategies on one shape, which has a number."""


def split_on_enough(
    operator: Operator, generate: Generate, kernel: Kernel, checks: Checks, single: frozenset[str] = frozenset()
) -> tuple[Shapes, Counter[str]]:
    """Split every strategy of an operator on enough shapes; return these, and how many checks of each kind held."""
    shapes, held = Shapes(single), Counter[str]()

    def sound(case: Case) -> None:
        description, extents = described(operator, case)
        key = shapes.key(description, case.operands, extents)
        wanted = shapes.wanted(description, extents, key)
        if wanted:
            application = applied(operator, case, kernel)
            for check in checks(application, wanted, crc32(repr(key).encode())):
                difference = check.run()
                assert difference is None, f"{check.name}: {difference}"
                held[check.name.partition(" ")[0]] += 1
        shapes.note(description, key, wanted)

    draw_until_enough(generate, shapes, sound)
    return shapes, held


def draw_until_enough(generate: Generate, shapes: Shapes, check: Callable[[Case], None]) -> None:
    """Draw cases and check them, until every strategy is split on enough shapes, or nothing new is found."""
    for number, count in enumerate(ROUNDS):
        before = len(shapes.drawn)
        limited = settings(QUIET, max_examples=count)
        seed(number)(limited(given(cases(generate))(check)))()
        if (shapes.drawn and shapes.least >= LEAST) or len(shapes.drawn) == before:
            return
