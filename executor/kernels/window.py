"""Geometry of sliding windows: which rows a run reads, and which local slices they are.

Along one dimension a window reads `position * stride + tap * dilation - padding`. `position` counts windows (y or x of
a convolution's result), and `tap` counts within the window (dy or dx). A run covers a range of both.
"""

from __future__ import annotations

from dataclasses import dataclass

from executor.kernels.call import Array, KernelCall, Range


@dataclass(frozen=True, slots=True)
class Window:
    """One windowed dimension: its stride, its padding, the taps of this run, and the distance between taps."""

    stride: int
    padding: int
    taps: Range
    dilation: int = 1

    def offset(self, tap: int) -> int:
        """Return the row that a tap of the window at position 0 reads."""
        return tap * self.dilation - self.padding

    def reads(self, positions: Range) -> Range:
        """Return the rows that windows at `positions` read, including padding."""
        first, last = positions[0], positions[1] - 1
        return (
            first * self.stride + self.offset(self.taps[0]),
            last * self.stride + self.offset(self.taps[1] - 1) + 1,
        )

    def read_by(self, rows: Range) -> Range:
        """Return the positions whose windows may read a row of `rows`. They may lie outside the tensor, or be empty."""
        first = -((self.offset(self.taps[1] - 1) - rows[0]) // self.stride)
        last = (rows[1] - 1 - self.offset(self.taps[0])) // self.stride
        return first, max(first, last + 1)

    def matches(self, tap: int, positions: Range, rows: Range) -> tuple[slice, slice]:
        """Return the slice of `positions` whose `tap` reads a row of `rows`, and the slice of those rows."""
        offset = self.offset(tap)
        first = max(positions[0], -((offset - rows[0]) // self.stride))
        last = min(positions[1] - 1, (rows[1] - 1 - offset) // self.stride)
        if last < first:
            return slice(0, 0), slice(0, 0)
        start = first * self.stride + offset - rows[0]
        stop = last * self.stride + offset - rows[0] + 1
        return slice(first - positions[0], last + 1 - positions[0]), slice(start, stop, self.stride)


def windows(call: KernelCall) -> tuple[Window, Window]:
    """Return the windows along y and x of an operator with `stride`, `padding` and the variables dy and dx."""
    strides, paddings = call.pair("stride"), call.pair("padding")
    dilations = dilation(call)
    along_y = Window(strides[0], paddings[0], call.ranges["dy"], dilations[0])
    along_x = Window(strides[1], paddings[1], call.ranges["dx"], dilations[1])
    return along_y, along_x


def dilation(call: KernelCall) -> tuple[int, int]:
    """Return the distance between neighbouring taps, along y and x."""
    return call.pair("dilation") if "dilation" in call.attributes else (1, 1)


def local_ranges(call: KernelCall, operand: int) -> tuple[Range, Range]:
    """Return the global rows and columns of an operand's local array. Its last two dimensions must be windowed."""
    origins, extents = call.origins[operand][-2:], call.inputs[operand].shape[-2:]
    return (origins[0], origins[0] + extents[0]), (origins[1], origins[1] + extents[1])


class Framed:
    """The rows and columns `wanted` of an operand. Positions that are not local read as `fill`.

    Images are padded when they are indexed.
    """

    def __init__(self, call: KernelCall, operand: int, wanted: tuple[Range, Range], fill: float) -> None:
        self._xp, self._array, self._fill = call.xp, call.inputs[operand], fill
        have = local_ranges(call, operand)
        extents = tuple(stop - start for start, stop in wanted)
        self.shape = (*self._array.shape[:-2], *extents)
        self._is_local = have == wanted
        source, target = [], []
        for (start, stop), (origin, end) in zip(wanted, have, strict=True):
            low = max(start, origin)
            high = max(low, min(stop, end))
            source.append(slice(low - origin, high - origin))
            target.append(slice(low - start, high - start))
        self._source, self._target = tuple(source), tuple(target)

    def is_inside(self) -> Array:
        """Return a mask [rows, columns] that is True inside the operand, False in the padding."""
        inside = self._xp.zeros(self.shape[-2:], dtype=bool)
        inside[self._target] = True
        return inside

    def __getitem__(self, part: slice) -> Array:
        """Return these images, padded."""
        piece = self._array[part]
        if self._is_local:
            return piece
        result = self._xp.full((len(piece), *self.shape[1:]), self._fill, dtype=piece.dtype)
        result[(..., *self._target)] = piece[(..., *self._source)]
        return result
