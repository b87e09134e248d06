"""Limits and tuning parameters of the search."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

NO_BOUND = -(1 << 62)
"""The lower bound if nothing is known."""


class Tuning(Struct, frozen=True):
    """Tuning parameters of the search: they affect how soon bounds and plans come, never whether they are right."""

    quick_operations: float = 1e9
    """Additions, about a second, below which the greedy order suffices and no cheaper order is sought."""

    few_entries: float = 3e6
    """Entries of all distinct tables, a tenth of a second, that are computed without checking the cost first."""

    table_entries: float = 3e8
    """Largest number of entries of all distinct tables computed at once: 2.4 GB."""

    table_entries_per_s: float = 3e7
    """Entries computed per second; tables that would take longer than the remaining time are not begun."""

    operations_per_s: float = 3e8
    """Additions per second; work that would take longer than the remaining time is not begun."""

    orders: int = 32
    """Largest number of elimination orders tried; the best takes up to ten times less work than the first."""

    ordering_part: float = 0.2
    """Fraction of the best order's work that the search for other orders may take."""

    ordering_operations: float = 5e4
    """Cost of finding one order, in additions per variable."""

    hoped_gain: float = 8.0
    """Largest factor by which another order may be expected to reduce the first order's work."""

    few_states: int = 2000
    """Number of states of all variables up to which solving whole is faster than solving over groups."""

    quotient_part: float = 0.5
    """Largest fraction of the states that the quotient may have to be worth its time."""

    near_choices: int = 1 << 22
    """Largest number of choices of a variable and its neighbours, no worse than the best plan, visited for marginals.

    """

    close: float = 2e-3
    """Optimality gap up to which the representatives of the best groups are not searched for a better plan."""

    untied_variables: int = 2000
    """Number of variables, before merging identical layers, up to which element-wise ties are left out.

    The recursion then takes about a second.
    """

    factored_workers: int = 16
    """Workers up to which every factorization is tried; beyond, only the prime factors and a single step are tried."""

    rival_steps: int = 4
    """Steps up to which rivals are tried: alternatives enumerate whole plans of every variable."""

    bound_seconds: float = 4.0
    """Seconds that a search for a bound alone may take after its setup."""

    bound_steps: Mapping[str, int] = field(default_factory=lambda: {"bytes": 3, "time": 2})
    """Steps up to which such a bound is sought, by objective; beyond, the setup alone takes long."""

    sweeps: int = 30
    """Passes of messages over all variables, in each direction."""

    converged: float = 2e-5
    """Messages end when five sweeps raise the bound by less than this fraction."""


class Limits(Struct, frozen=True):
    """Limits of a search: bytes of an elimination's tables, its additions, and CPU seconds of bounded stages.

    Computing a table takes three times its memory.
    """

    memory_bytes: int = 3 << 30
    operations: float = 5e10
    seconds: float = 95.0
    tuning: Tuning = Tuning()
