"""MultiFetch: one launch that copies or combines all pieces of a transfer, or of several, on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from executor.cuda_source import kernel_of
from executor.multifetch.moves import Move, Pair, address, copies, reduction
from executor.multifetch.table import tables
from executor.values import ArrayModule

__all__ = ["SOURCE", "Move", "MultiFetch", "Pair", "address", "copies", "reduction"]

SOURCE = Path(__file__).with_name("multifetch.cu")
THREADS = 256


class MultiFetch:
    """Moves that one launch carries out; their tables are uploaded once, here.

    No move may write what another one reads or writes.
    """

    def __init__(self, xp: ArrayModule, moves: Sequence[Move]) -> None:
        launch = tables(moves)
        self._kernel = kernel_of(xp, SOURCE, "multifetch")
        self._moves = tuple(moves)  # keeps their memory
        self._grid = (launch.blocks,)
        uploaded = (xp.asarray(table.view(np.uint8)) for table in (launch.segments, launch.terms, launch.first_blocks))
        self._arguments = (*uploaded, np.int32(len(launch.segments)))

    def __call__(self) -> None:
        """Queue the launch on the current stream."""
        if self._moves:
            self._kernel(self._grid, (THREADS,), self._arguments)
