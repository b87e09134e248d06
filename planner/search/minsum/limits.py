"""What a search may use."""

from __future__ import annotations

from dataclasses import dataclass

NO_BOUND = -(1 << 62)
"""What is known of the least cost where nothing is."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a search may use: bytes of tables that an elimination keeps, its additions, CPU seconds where it is bounded.

    While a table is made it takes three times as much.
    """

    memory_bytes: int = 3 << 30
    operations: float = 5e10
    seconds: float = 95.0
