"""Functions with explicit gradients, where PyTorch's differ from those that would follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def with_gradient(function: Callable[..., Tensor], *gradients: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return an element-wise function with explicit gradients, one per differentiable operand.

    A gradient is a function of the arriving gradient and of the arguments. The differentiable operands come first and
    have one shape.
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
    """Return an element-wise function whose gradient is the arriving one times a given slope."""
    return with_gradient(function, lambda arriving, *given: arriving * slope(*given))
