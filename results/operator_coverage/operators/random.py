"""Random tensors: every element is a function of the seed and of its own global index.

So a worker makes just its part, and any number of workers make the same whole. The numbers are not those of the
sequential generators of other frameworks; their distribution is.
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi
from typing import Any

import numpy as np

from tdl.expr import RANDOM_BITS, Expr, lift
from tdl.language import Lambda, OpaqueFunction, Operand, cos, log, random_bits, sqrt, tensor
from tdl.operator import op


def _unit(*counters: object) -> Expr:
    """Return a number strictly between 0 and 1."""
    return (random_bits(*counters) + 0.5) / float(1 << RANDOM_BITS)


def _gauss(*counters: object) -> Expr:
    """Return a standard normal number, by Box and Muller's method."""
    return sqrt(-2 * log(_unit(*counters, 0))) * cos(2 * pi * _unit(*counters, 1))


@op
def random_exponential(*, rate: float, rank: int, seed: int = 0) -> Lambda:
    return tensor(lambda *i: -log(_unit(seed, *i)) / rate, rank=rank)


@op
def sample_uniform(low: Operand, high: Operand, *, draws: int, seed: int = 0) -> Lambda:
    """A row of `draws` numbers for every element of the parameters; the next two likewise."""
    return tensor(lambda *i, s=draws: low[i] + (high[i] - low[i]) * _unit(seed, *i, s), rank=low.rank)


@op
def sample_normal(mean: Operand, deviation: Operand, *, draws: int, seed: int = 0) -> Lambda:
    return tensor(lambda *i, s=draws: mean[i] + deviation[i] * _gauss(seed, *i, s), rank=mean.rank)


@op
def sample_exponential(rate: Operand, *, draws: int, seed: int = 0) -> Lambda:
    return tensor(lambda *i, s=draws: -log(_unit(seed, *i, s)) / rate[i], rank=rate.rank)


DISTRIBUTIONS: dict[str, Callable[..., Any]] = {
    "gamma": lambda generator, shape, scale: generator.gamma(shape, scale),
    "poisson": lambda generator, mean: generator.poisson(mean),
    "negative_binomial": lambda generator, count, chance: generator.negative_binomial(count, chance),
    "generalized_negative_binomial": lambda generator, mean, dispersion: generator.poisson(
        generator.gamma(1 / dispersion, mean * dispersion)
    ),
}
"""Distributions drawn by rejection, from as many random numbers as it takes: one element, given its parameters."""


def _rejection(distribution: str, seed: int, parameters: int) -> OpaqueFunction:
    def draw(*values: Any) -> Any:
        key = [seed, *(int(value) for value in values[parameters:])]
        return DISTRIBUTIONS[distribution](np.random.default_rng(key), *values[:parameters])

    return OpaqueFunction(draw, like=None, name=distribution)


@op
def random_rejection(*, distribution: str, parameters: tuple[float, ...], rank: int, seed: int = 0) -> Lambda:
    """A tensor of independent elements; its extents are given."""
    drawn = _rejection(distribution, seed, len(parameters))
    return tensor(lambda *i: drawn(*map(lift, parameters), *i)[()], rank=rank)


@op
def sample_rejection(*parameters: Operand, distribution: str, draws: int, seed: int = 0) -> Lambda:
    """A row of `draws` independent elements for every element of the parameters."""
    drawn = _rejection(distribution, seed, len(parameters))
    return tensor(lambda *i, s=draws: drawn(*(p[i] for p in parameters), *i, s)[()], rank=parameters[0].rank)


@op
def sample_choice(weights: Operand, *, draws: int, seed: int = 0) -> Lambda:
    """`draws` positions from every row of probabilities."""

    def choose(row: Any, *key: Any) -> Any:
        generator = np.random.default_rng([seed, *(int(part) for part in key)])
        return int(generator.choice(len(row), p=row / row.sum()))

    chosen = OpaqueFunction(choose, like=None, name="choice")
    return tensor(lambda *i, s=draws: chosen(weights[*i, :], *i, s)[()], rank=weights.rank - 1)
