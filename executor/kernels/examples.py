"""Kernels of the small operators that the documentation introduces the language with."""

from __future__ import annotations

from executor.kernels.call import Kernel, KernelCall
from executor.kernels.convolution import DENSE, correlate


def shift_two(call: KernelCall) -> None:
    """Read two elements further on."""
    (start, stop), (origin,) = call.ranges["i"], call.origins[0]
    call.xp.copyto(call.outputs[0], call.inputs[0][start + 2 - origin : stop + 2 - origin])


def conv1d(call: KernelCall) -> None:
    """One-dimensional convolution without padding; filters are [ci, co, dx]."""
    data, filters = call.inputs
    (start, stop), (first, last), origin = call.ranges["x"], call.ranges["dx"], call.origins[0][2]
    data = data[:, :, start + first - origin : stop + last - 1 - origin]
    weight = filters.transpose(1, 0, 2)[:, :, None, :]
    correlate(call.xp, data[:, :, None, :], weight, DENSE, call.outputs[0][:, :, None, :])


def batch_cholesky(call: KernelCall) -> None:
    """Lower Cholesky factor of every matrix of a batch."""
    call.xp.copyto(call.outputs[0], call.xp.linalg.cholesky(call.inputs[0]))


KERNELS: dict[str, Kernel] = {"shift_two": shift_two, "conv1d": conv1d, "batch_cholesky": batch_cholesky}
