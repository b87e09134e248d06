"""Matrix products among operators: their shapes, read off the descriptions, for the price of a kernel.

Of two operands, variables that index only the first count rows (m), only the second columns (n), summed variables k,
and all others a batch. Of two variables in one index, which form a window, the one with the smaller extent counts taps,
the other pixels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, gcd, prod

import tdl
from planner.layout.signature import Signature
from planner.layout.split import REMEMBERED
from topologies.kernels import ALIGNED, Product, Role, Window

PRODUCTS = ("matmul", "convolution")
ROLES: tuple[Role, ...] = ("batch", "m", "n", "k")


@dataclass(frozen=True, slots=True)
class Contraction:
    """An operator as a product: the role of every variable, and (taps, pixels) of every window dimension.

    `density` is the fraction of iterations that count, since strides leave gaps in a gradient; `dense` is that of
    `Window`. Rows of the operands and of the result are contiguous in memory along variables of the roles in
    `contiguous`.
    """

    roles: Mapping[str, Role]
    contiguous: frozenset[Role]
    windows: tuple[tuple[str, str], ...]
    density: float
    dense: bool

    def product(self, extents: Mapping[str, int]) -> Product:
        """Return the product over these numbers of iterations of each variable."""
        totals = {role: prod(extents[name] for name, own in self.roles.items() if own == role) for role in ROLES}
        totals["k"] = ceil(totals["k"] * self.density)
        aligned = gcd(ALIGNED, *(totals[role] for role in self.contiguous if totals[role] >= ALIGNED))
        return Product(totals["batch"], totals["m"], totals["n"], totals["k"], self._window(extents), aligned)

    def _window(self, extents: Mapping[str, int]) -> Window | None:
        if not self.windows:
            return None
        taps, pixels = zip(*self.windows, strict=True)
        return Window(
            taps=tuple(extents[name] for name in taps),
            pixels=tuple(extents[name] for name in pixels),
            taps_in=self.roles[taps[0]],
            pixels_in=self.roles[pixels[0]],
            dense=self.dense,
        )


@lru_cache(REMEMBERED)
def contraction(signature: Signature) -> Contraction | None:
    """Return an operator as a product of two operands; None if it is not one."""
    description = signature.description
    first, second, *more = [*_variables_read(description), None, None]
    if signature.category not in PRODUCTS or first is None or second is None or more != [None, None]:
        return None
    summed = description.reduction_variables
    roles = {name: _role(name in first, name in second, name in summed) for name in description.variables}
    indices = (index for access in description.accesses for index in access.index)
    two_variables = (index for index in indices if isinstance(index, tdl.Affine) and len(index.variables) == 2)
    window_indices = list(dict.fromkeys(two_variables))
    windows = tuple(_taps_and_pixels(index, signature.extents) for index in window_indices)
    density = prod(1 / index.denominator for index in window_indices)
    dense = all(abs(factor) == 1 for index in window_indices for _, factor in index.terms)
    contiguous = frozenset(() if windows else (roles[name] for name in _contiguous(description)))
    return Contraction(roles, contiguous, windows, density, dense)


def _contiguous(description: tdl.Description) -> set[str]:
    """Return the variables that index the last dimensions of the operands and of the result."""
    read = {name for access in description.accesses for last in access.index[-1:] for name in last.variables}
    return read | set(description.output_variables[-1:])


def _variables_read(description: tdl.Description) -> list[set[str]]:
    read: dict[int, set[str]] = {}
    for access in description.accesses:
        read.setdefault(access.operand, set()).update(name for index in access.index for name in index.variables)
    return list(read.values())


def _role(in_first: bool, in_second: bool, summed: bool) -> Role:
    if summed:
        return "k"
    return "batch" if in_first == in_second else "m" if in_first else "n"


def _taps_and_pixels(index: tdl.Affine, extents: Mapping[str, int]) -> tuple[str, str]:
    taps, pixels = sorted(index.variables, key=extents.__getitem__)
    return taps, pixels
