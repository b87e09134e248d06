"""What a search may use."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """What a search may use: bytes of an elimination's tables, its additions, CPU seconds of a bounded search."""

    memory_bytes: int = 3 << 30
    operations: float = 5e10
    seconds: float = 95.0
