"""Functions with gradients that are chosen, as PyTorch chooses some, in place of those that follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def with_gradient(function: Callable[..., Tensor], *gradients: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function of elements with gradients that are functions of the arriving one and of what it is given.

    Its first arguments, one for each gradient, are tensors of one shape.
    """

    def written(*arguments: Any) -> Tensor:
        operands = [torch.ops.planner.operand(x) for x in arguments[: len(gradients)]]
        given = *operands, *arguments[len(gradients) :]
        result = function(*given)
        arriving = torch.ops.planner.arriving(result, operands)
        made_of = [gradient(arriving, *given) for gradient in gradients]
        chosen: Tensor = torch.ops.planner.with_gradient([result], operands, [arriving], made_of)[0]
        return chosen

    return written


def with_slope(function: Callable[..., Tensor], slope: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function of elements whose gradient is multiplied by another of them, whatever it would be."""
    return with_gradient(function, lambda arriving, *given: arriving * slope(*given))
