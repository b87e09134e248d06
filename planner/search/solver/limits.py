"""What a search may use, and the numbers that it is tuned by."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

NO_BOUND = -(1 << 62)
"""What is known of the least cost where nothing is."""


class Tuning(Struct, frozen=True):
    """The numbers that the search is tuned by: none makes a bound or a plan wrong, each decides how soon they come."""

    quick_operations: float = 1e9
    """Additions, about a second, for which the greedy order will do: no order of less work is looked for."""

    few_entries: float = 3e6
    """Entries of all distinct tables that are made, a tenth of a second, before looking whether they will do."""

    table_entries: float = 3e8
    """Entries of all distinct tables, 2.4 GB: more are not made at once."""

    table_entries_per_s: float = 3e7
    """Entries that are made in a second: tables of more than the time allows are not begun."""

    operations_per_s: float = 3e8
    """Additions in a second: what takes more than the time allowed is not begun."""

    orders: int = 32
    """Elimination orders looked for at most; the best of them takes up to ten times less work than the first."""

    ordering_part: float = 0.2
    """Part of the work of the best order found that looking for others may take."""

    ordering_operations: float = 5e4
    """Looking for one order takes as long as so many additions for each variable."""

    hoped_gain: float = 8.0
    """How many times less work than the first another order may be hoped to take."""

    few_states: int = 2000
    """States of all variables together up to which solving whole is quicker than solving over groups."""

    quotient_part: float = 0.5
    """Part of the states that may be left in the quotient for it to be worth its time."""

    near_choices: int = 1 << 22
    """Choices of a variable and its neighbours, no worse than the best plan, that are gone through for marginals."""

    close: float = 2e-3
    """Optimality gap from which those who stand for the best groups need not be searched for a better plan."""

    untied_variables: int = 2000
    """Variables, identical layers not merged, up to which a graph is searched without element-wise ties: the recursion
    takes about a second then."""

    factored_workers: int = 16
    """Workers up to which every factorisation is tried; beyond, only the prime factors and none: there are too many."""

    rival_steps: int = 4
    """Steps up to which rivals are tried: alternatives look at whole plans of every variable."""

    bound_seconds: float = 4.0
    """Seconds that the search for a bound alone may take, beyond what it takes to begin."""

    bound_steps: Mapping[str, int] = field(default_factory=lambda: {"bytes": 3, "time": 2})
    """By objective, steps up to which such a bound is sought, as beginning alone takes long."""

    sweeps: int = 30
    """Passes of messages over all variables, each way."""

    converged: float = 2e-5
    """Messages end when five sweeps raise the bound by less than this part."""


class Limits(Struct, frozen=True):
    """What a search may use: bytes of tables that an elimination keeps, its additions, CPU seconds where it is bounded.

    While a table is made it takes three times as much.
    """

    memory_bytes: int = 3 << 30
    operations: float = 5e10
    seconds: float = 95.0
    tuning: Tuning = Tuning()
