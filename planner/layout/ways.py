"""How workers are divided, step by step, and in which shares."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Ways:
    """The factors into which workers are divided, one per step, and the workers' shares where these differ.

    A worker is a number with a digit per step, the first the most significant. `shares` are all workers', in the order
    of their ranks and in lowest terms; empty where they are equal.

    >>> ways = Ways((2, 2), (6, 2, 4, 4))
    >>> ways.workers, ways.digits(2), ways.shares
    (4, (1, 0), (3, 1, 2, 2))
    >>> ways.prefix(1), ways.prefix(1) == (2,)
    (Ways(factors=(2,), shares=()), True)
    """

    factors: tuple[int, ...] = ()
    shares: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Bring shares to lowest terms; equal ones are none."""
        if not all(isinstance(share, int) for share in self.shares):
            return  # which whoever checks them says
        divisor, equal = math.gcd(*self.shares), len(set(self.shares)) <= 1
        object.__setattr__(self, "shares", () if equal else tuple(share // divisor for share in self.shares))

    def __eq__(self, other: object) -> bool:
        """Equal shares are as good as none: such ways equal their factors, as users write them."""
        if isinstance(other, tuple):
            return not self.shares and self.factors == other
        return isinstance(other, Ways) and self.factors == other.factors and self.shares == other.shares

    def __hash__(self) -> int:
        return hash(self.factors)

    def __len__(self) -> int:
        return len(self.factors)

    def __iter__(self) -> Iterator[int]:
        return iter(self.factors)

    def __getitem__(self, step: int) -> int:
        return self.factors[step]

    @property
    def workers(self) -> int:
        """The number of workers."""
        return math.prod(self.factors)

    def prefix(self, steps: int) -> Ways:
        """Return the first steps alone, in which each group of workers is one with the shares of all of them."""
        size = math.prod(self.factors[steps:])
        firsts = range(0, len(self.shares), size)
        return Ways(self.factors[:steps], tuple(sum(self.shares[first : first + size]) for first in firsts))

    def digits(self, worker: int) -> tuple[int, ...]:
        """Return a worker's digits, one per step."""
        reversed_digits = []
        for factor in reversed(self.factors):
            worker, digit = divmod(worker, factor)
            reversed_digits.append(digit)
        return tuple(reversed(reversed_digits))
