"""PyTorch's kernels for the heavy operators, with the same calls and memory as the executor's own, which do the rest.

Softmax and layer norm are composed of PyTorch functions for their parts, because workers split them in the middle of
what is one function in PyTorch. Images are NCHW, filters OIHW. PyTorch pads both sides equally, but a worker's share of
an image is only padded at the tensor's border, so images are framed first and PyTorch gets no padding. Outputs of
element-wise kernels may share memory with inputs. Maximum pooling of whole images is one function; its forward pass,
which computes maxima and positions together, is slower on a CPU than that on arrays.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from math import prod
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  # as PyTorch's users know it

from executor.kernels import KERNELS, NATIVE, Kernel, KernelCall, KernelSet, run
from executor.kernels.call import Action, Range
from executor.kernels.pooling import Framed, Window, dilation, local_ranges, reads, windows
from executor.kernels.sums import letters_of_product
from executor.torch.attention import AT_ONCE, ATTENTION
from executor.torch.elementwise import ELEMENTWISE, UPDATES
from executor.torch.normalization import NORMAL, NORMALIZATION, RMS_NORM, SOFTMAX
from executor.torch.tensors import PRODUCTS, are_computed, obstacle, tensor_of, tensors_of, widened
from executor.values import ArrayModule
from planner.errors import InputError
from tdl.operator import named

FORWARD, BACKWARD = "max_pool2d_with_indices", "max_pool2d_with_indices_backward"


def _is_whole(call: KernelCall, tensors: list[torch.Tensor], image: torch.Tensor) -> bool:
    """Return whether a call has dense images and all windows, each narrower than the image."""
    extents, (_, across) = cast("Mapping[str, int]", call.attributes["extents"]), call.pair("kernel")
    is_whole = all(call.ranges[name] == (0, extents[name]) for name in ("y", "x", "dy", "dx") if name in extents)
    is_dense = image.is_contiguous() and are_computed(call, tensors)
    return is_whole and is_dense and image.is_floating_point() and (across - 1) * dilation(call)[1] < image.shape[3]


def _starts(call: KernelCall, image: torch.Tensor, windows: torch.Tensor) -> torch.Tensor:
    """Return the flat positions in an image at which windows start.

    Positions in the padding count from the row before.
    """
    (down, across), padding, width = call.pair("stride"), call.pair("padding"), image.shape[3]
    rows, columns = map(partial(torch.arange, device=image.device), windows.shape[2:])
    return (rows[:, None] * down - padding[0]) * width + (columns * across - padding[1])


def max_pool2d_with_indices(call: KernelCall) -> None:
    """Compute each window's maximum, and the offset within the whole window of its first occurrence."""
    (image,), (values, offsets) = tensors_of(call)
    if call.xp is np or not _is_whole(call, [image], image):
        run(KERNELS[FORWARD], call)
        return
    kernel, steps, width = call.pair("kernel"), dilation(call), image.shape[3]
    maxima, places = aten.max_pool2d_with_indices(image, kernel, call.pair("stride"), call.pair("padding"), steps)
    values.copy_(maxima)
    distances = places.sub_(_starts(call, image, values))
    rows = distances.div(steps[0] * width, rounding_mode="floor").mul_(kernel[1])
    offsets.copy_(rows.add_(distances.remainder_(width).div_(steps[1], rounding_mode="floor")))


def max_pool2d_with_indices_backward(call: KernelCall) -> None:
    """Add each window's gradient to the element where its maximum first occurred."""
    (grad, offsets), (out,) = tensors_of(call)
    if not _is_whole(call, [grad, offsets, out], out):
        run(KERNELS[BACKWARD], call)
        return
    kernel, steps, width = call.pair("kernel"), dilation(call), out.shape[3]
    down, across = map(partial(torch.arange, device=grad.device), kernel)
    nowhere = down.new_full((1,), -out.numel())  # NaN has an offset beyond all others
    of_offset = torch.cat(((down[:, None] * (steps[0] * width) + across * steps[1]).flatten(), nowhere))
    places = of_offset.index_select(0, offsets.flatten()).view(offsets.shape).add_(_starts(call, out, grad))
    geometry = kernel, call.pair("stride"), call.pair("padding"), steps, False
    aten.max_pool2d_with_indices_backward.grad_input(grad, out, *geometry, places.clamp_(min=-1), grad_input=out)


POOLING: dict[str, Kernel] = {FORWARD: max_pool2d_with_indices, BACKWARD: max_pool2d_with_indices_backward}
"""Kernels by operator."""


def captured(xp: ArrayModule, queue: Action) -> Action:
    """Capture what an action queues on CuPy's current stream, which PyTorch shares; return the action that launches it.

    Nothing runs yet. Memory that the action allocates, in its own pools, lives as long as the returned action. The
    action must have run before, because the first run compiles kernels and creates library workspaces. Raises
    InputError if it cannot be captured, for example because it waits for the device.
    """
    graph, pool, here = torch.cuda.CUDAGraph(), xp.cuda.MemoryPool(), torch.cuda.current_stream()
    try:
        with xp.cuda.using_allocator(pool.malloc), torch.cuda.graph(graph, stream=here, capture_error_mode="relaxed"):
            queue()
    except (RuntimeError, NotImplementedError) as error:
        raise InputError(f"--graphs: a step cannot be captured: {str(error).splitlines()[0]}") from error
    return partial(_launched, graph, pool)


def _launched(graph: torch.cuda.CUDAGraph, _memory: object) -> None:
    graph.replay()


aten = torch.ops.aten


def _factors(call: KernelCall) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = tensors_of(call)[0]
    return a.mT if call.flag("transpose_a") else a, b.mT if call.flag("transpose_b") else b


def _of_floats(op: str, kernel: Kernel) -> Kernel:
    """Return a kernel that leaves integers to the kernel on arrays, which detects overflow."""
    return lambda call: (kernel if call.outputs[0].dtype.kind != "i" else KERNELS[op])(call)


def _output(call: KernelCall) -> torch.Tensor:
    return tensors_of(call)[1][0]


def product(call: KernelCall) -> None:
    """Compute the product of two matrices, or of two batches of matrices, each optionally transposed."""
    torch.matmul(*_factors(call), out=_output(call))


def add_mm(call: KernelCall) -> None:
    """Add the product of two matrices to the output."""
    _output(call).addmm_(*_factors(call))


@dataclass(frozen=True, slots=True)
class Arranged:
    """How a tensor becomes matrices: a permutation of its dimensions, then the shape [batch, m, n], or [m, n]."""

    order: tuple[int, ...]
    shape: tuple[int, ...]

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor as matrices, as a view if possible."""
        return tensor.permute(self.order).reshape(self.shape)


@dataclass(frozen=True, slots=True)
class Product:
    """An Einstein sum of two operands as a matrix product, and the shape and order of its result.

    It is `transposed` if that order is that of the transposed matrices.
    """

    factors: tuple[Arranged, Arranged]
    shape: tuple[int, ...]
    order: tuple[int, ...]
    transposed: bool


@lru_cache(1 << 12)
def _product(equation: str, *shapes: tuple[int, ...]) -> Product | None:
    """Return the product that computes an Einstein sum.

    None unless it has two operands, and no letter that is summed over occurs in only one of them.
    """
    sources, target = equation.replace(" ", "").split("->")
    if len(shapes) != 2:
        return None
    first, second = sources.split(",")
    if ({*first} ^ {*second}) - {*target}:
        return None
    extents = dict(zip(first + second, shapes[0] + shapes[1], strict=True))
    batch, rows, columns, inner = letters_of_product(first, second, target)

    def arranged(letters: str, *groups: str) -> Arranged:
        shape = [prod(extents[letter] for letter in group) for group in groups[not batch :]]
        return Arranged(tuple(letters.index(letter) for letter in "".join(groups)), tuple(shape))

    produced = batch + rows + columns
    factors = arranged(first, batch, rows, inner), arranged(second, batch, inner, columns)
    shape, order = tuple(extents[letter] for letter in produced), tuple(map(produced.index, target))
    return Product(factors, shape, order, target == batch + columns + rows != produced)


def einsum(call: KernelCall, *, adds: bool = False) -> None:
    """Compute an Einstein sum in explicit form. A sum of two operands is one product, written in place if possible."""
    equation, (tensors, (out,)) = str(call.attributes["equation"]), tensors_of(call)
    if (product := _product(equation, *(array.shape for array in call.inputs))) is None:
        result = torch.einsum(equation, *map(widened, tensors))  # no rounding between products
    else:
        a, b = (factor.of(tensor) for factor, tensor in zip(product.factors, tensors, strict=True))
        is_in_place = any(tensor.data_ptr() == out.data_ptr() for tensor in tensors)
        if (product.transposed or product.order == tuple(range(out.ndim))) and out.is_contiguous() and not is_in_place:
            rows, columns = (b.mT, a) if product.transposed else (a, b.mT)
            matrices = out.view(*a.shape[:-2], rows.shape[-2], columns.shape[-2])
            _multiply(a, b, matrices.mT if product.transposed else matrices, adds)
            return
        result = torch.matmul(a, b).view(product.shape).permute(product.order)
    (out.add_ if adds else out.copy_)(result)


def _multiply(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, adds: bool) -> None:
    if adds:
        (out.addmm_ if a.ndim == 2 else out.baddbmm_)(a, b)
    else:
        torch.matmul(a, b, out=out)


def _groups(call: KernelCall) -> int:
    return 1 if call.attributes.get("groups", 1) == 1 else call.length("g")


def _padded(call: KernelCall, operand: int) -> tuple[torch.Tensor, tuple[int, int]]:
    """Return an image and its padding on each side, such that PyTorch's windows read what ours read."""
    if (padding := call.once(_padding, operand)) is not None:
        return tensors_of(call)[0][operand], padding
    return tensor_of(Framed(call, operand, reads(call), 0)[:]), (0, 0)


Ranges = tuple[Range, Range]


def _padding(call: KernelCall, operand: int) -> tuple[int, int] | None:
    return _alike(windows(call), (call.ranges["y"], call.ranges["x"]), local_ranges(call, operand))


def _alike(along: tuple[Window, Window], positions: Ranges, rows: Ranges) -> tuple[int, int] | None:
    """Return the padding with which PyTorch has exactly the windows at `positions` over these rows; else None."""
    paddings = []
    for window, those, (start, stop) in zip(along, positions, rows, strict=True):
        padding = start - window.reads(those)[0]
        first, last = window.reads((0, 1))
        if padding < 0 or (stop - start + 2 * padding - (last - first)) // window.stride + 1 != those[1] - those[0]:
            return None
        paddings.append(padding)
    return paddings[0], paddings[1]


def convolution(call: KernelCall) -> None:
    """Correlate images with filters."""
    (image, padding), weight, stride = _padded(call, 0), tensors_of(call)[0][1], call.pair("stride")
    geometry = None, stride, padding, dilation(call), _groups(call)
    # A worker's windows may only read padding.
    result = F.conv2d(image, weight, *geometry) if image.numel() else image.new_zeros(())
    _output(call).copy_(result)


def convolution_backward_input(call: KernelCall) -> None:
    """Compute the gradient of the image: each window's gradient is added to the elements that it read."""
    (grad, weight), (out,) = tensors_of(call)
    padding = call.once(_padding_of_gradient)
    if padding is not None and grad.numel():
        out.copy_(_gradients(call, (grad, out, weight), padding, (True, False, False))[0])
        return
    out.zero_()
    if not grad.numel():
        return
    image = F.conv_transpose2d(grad, weight, stride=call.pair("stride"), groups=_groups(call), dilation=dilation(call))
    kept = call.ranges["y"], call.ranges["x"]
    (from_y, to_y), (from_x, to_x) = map(_overlap, windows(call), local_ranges(call, 0), kept, image.shape[2:])
    out[:, :, to_y, to_x] = image[:, :, from_y, from_x]


def _padding_of_gradient(call: KernelCall) -> tuple[int, int] | None:
    return _alike(windows(call), local_ranges(call, 0), (call.ranges["y"], call.ranges["x"]))


def _overlap(window: Window, positions: Range, kept: Range, length: int) -> tuple[slice, slice]:
    """Return where the kept rows lie among the rows that windows read, and where among the kept rows.

    The windows at `positions` read `length` rows.
    """
    first = positions[0] * window.stride + window.offset(window.taps[0])
    start = max(first, kept[0])
    stop = max(start, min(first + length, kept[1]))
    return slice(start - first, stop - first), slice(start - kept[0], stop - kept[0])


def convolution_backward_weight(call: KernelCall) -> None:
    """Compute the gradient of the weight: gradient times image at each tap, summed over images and windows."""
    (grad, _), (out,) = tensors_of(call)
    image, padding = _padded(call, 1)
    if image.numel():
        out.copy_(_gradients(call, (grad, image, out), padding, (False, True, False))[1])
    else:  # a worker's taps may only read padding
        out.zero_()


def _gradients(
    call: KernelCall, tensors: tuple[torch.Tensor, ...], padding: tuple[int, int], needed: tuple[bool, bool, bool]
) -> tuple[torch.Tensor, ...]:
    """Return the needed gradients of image, weight and bias, given the result's gradient, image and weight."""
    geometry = call.pair("stride"), padding, dilation(call), False, (0, 0), _groups(call)
    gradients: tuple[torch.Tensor, ...] = aten.convolution_backward(*tensors, None, *geometry, needed)
    return gradients


def _into(function: Callable[..., object], *constants: float, result: str = "out") -> Kernel:
    """Return the kernel of a function, with constant arguments, that writes to its argument `result`."""

    def kernel(call: KernelCall) -> None:
        function(*tensors_of(call)[0], *constants, **{result: _output(call)})

    return kernel


_gradient = partial(_into, result="grad_input")


def _gelu(function: Callable[..., torch.Tensor], into: Callable[..., object], result: str) -> Kernel:
    """Return the kernel of gelu or its gradient; `into` writes to its argument `result`.

    In single precision, PyTorch does not write a result that is not contiguous.
    """

    def kernel(call: KernelCall) -> None:
        operands, (out,) = tensors_of(call)
        approximate = str(call.attributes.get("approximate", "none"))
        if out.is_contiguous():
            into(*operands, approximate=approximate, **{result: out})
        else:
            out.copy_(function(*operands, approximate=approximate))

    return kernel


TORCH_KERNELS: dict[str, Kernel] = {
    **named(convolution, convolution_backward_input, convolution_backward_weight),
    **NORMALIZATION,
    **NORMAL,
    **RMS_NORM,
    **SOFTMAX,
    **ATTENTION,
    **POOLING,
    **UPDATES,
    **ELEMENTWISE,
    **{op: _of_floats(op, kernel) for op, kernel in {"mm": product, "bmm": product, "einsum": einsum}.items()},
    "gelu": _gelu(aten.gelu, aten.gelu.out, "out"),
    "gelu_backward": _gelu(aten.gelu_backward, aten.gelu_backward.grad_input, "grad_input"),
    "relu": _into(torch.clamp_min, 0),
    "threshold_backward": _gradient(aten.threshold_backward.grad_input, 0),
    "sigmoid": _into(torch.sigmoid),
    "sigmoid_backward": _gradient(aten.sigmoid_backward.grad_input),
    "tanh": _into(torch.tanh),
    "tanh_backward": _gradient(aten.tanh_backward.grad_input),
    "silu": _into(aten.silu.out),
    "silu_backward": _gradient(aten.silu_backward.grad_input),
}
"""PyTorch's kernels, by operator."""

ADDING: dict[str, Kernel] = {"mm": add_mm, "einsum": partial(einsum, adds=True)}
"""Kernels that add their result to the output."""

KERNEL_SET = KernelSet(
    library=f"torch {torch.__version__}",
    kernels=ChainMap(TORCH_KERNELS, KERNELS),
    adding=ADDING,
    native=NATIVE | frozenset(TORCH_KERNELS),
    at_once=AT_ONCE,
    several={op: update.several for op, update in UPDATES.items()},
    obstacle=obstacle,
    products=PRODUCTS,
    capture=captured,
    held_bytes=torch.cuda.memory_reserved,
    release=torch.cuda.empty_cache,
)
"""PyTorch's kernels where there are any, otherwise those on arrays."""
