"""MultiFetch: one launch that copies or combines all pieces of a transfer, or of several, on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from executor.multifetch.moves import Move, Pair, address, copies, reduction
from executor.multifetch.table import tables
from executor.values import ArrayModule

__all__ = ["SOURCE", "Move", "MultiFetch", "Pair", "address", "copies", "reduction"]

SOURCE = Path(__file__).with_name("multifetch.cu")
OPTIONS = ("--std=c++17",)
THREADS = 256


@cache
def _kernel(xp: ArrayModule) -> Any:
    return xp.RawModule(code=SOURCE.read_text(), options=OPTIONS).get_function("multifetch")


class MultiFetch:
    """Moves that one launch carries out; their tables are uploaded once, here.

    No move may write what another one reads or writes.
    """

    def __init__(self, xp: ArrayModule, moves: Sequence[Move]) -> None:
        launch = tables(moves)
        self._kernel = _kernel(xp)
        self._moves = tuple(moves)  # keeps their memory
        self._grid = (launch.blocks,)
        uploaded = (xp.asarray(table.view(np.uint8)) for table in (launch.segments, launch.terms, launch.first_blocks))
        self._arguments = (*uploaded, np.int32(len(launch.segments)))

    def __call__(self) -> None:
        """Queue the launch on the current stream."""
        if self._moves:
            self._kernel(self._grid, (THREADS,), self._arguments)
