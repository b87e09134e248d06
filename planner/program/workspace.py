"""Workspace of kernels besides operands and results, from local shapes, and all that a worker needs in memory.

A convolution processes its batch in parts: for each part it copies out what the windows read, and multiplies. A part is
as many images as fit in the device's `workspace_bytes`, at least one. The executor's kernels split their batches by
these functions. MXNet's convolutions without cuDNN follow the same rule; with cuDNN the same figure is the most that an
algorithm may request. On a host a part should fit in the cache, but should not be small compared with the weights,
which every part reads again (`part_bytes`). A call whose result is combined with earlier ones needs room for its own
result. Nothing else needs a workspace on a GPU; temporaries of NumPy expressions, and padded copies of images, concern
the executor alone and are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import cast

from planner.graph.ir import ITEM_BYTES
from planner.program.tasks import Compute, Kernel, SlicedCall, Slices, WorkerProgram, align, extents
from topologies import Device
from topologies.schema import WORKSPACE_BYTES

Shape = tuple[int, ...]
Shapes = tuple[Shape, ...]

BATCHED_AREA = 256
"""From this many result elements per image on, one product per image beats one product with transposed copies."""

WEIGHTS_PER_PART = 4
"""If a device's workspace is smaller, a part may take this multiple of the weights' bytes, up to `WORKSPACE_BYTES`."""


def part_bytes(limit_bytes: float, weight_bytes: int) -> float:
    """Return the bytes that a part of a batch may take if a device's workspace is `limit_bytes`."""
    return max(limit_bytes, min(WORKSPACE_BYTES, WEIGHTS_PER_PART * weight_bytes))


def batches(count: int, bytes_each: int, limit_bytes: float) -> list[slice]:
    """Split a batch of `count` images into parts that need at most `limit_bytes`, or of one image each."""
    size = max(1, int(limit_bytes) // max(1, bytes_each))
    return [slice(start, start + size) for start in range(0, count, size)]


def by_rows(result: Shape, stride: tuple[int, int]) -> bool:
    """Return True if shifts of the image along x are stacked and used for every row of taps."""
    return stride[0] == 1 and not at_once(result)


def at_once(result: Shape) -> bool:
    """Return True if the windows of all images are copied out together and multiplied once."""
    return math.prod(result[2:]) < BATCHED_AREA


def stacked_elements(image: Shape, taps: int, stride: tuple[int, int], columns: int) -> int:
    """Return the elements of the stacked shifts of one image; 0 for a single shift, which is the image itself."""
    return 0 if (taps, stride[1]) == (1, 1) else taps * image[1] * image[2] * columns


def correlation_elements(image: Shape, weight: Shape, result: Shape, stride: tuple[int, int]) -> int:
    """Return the elements needed to correlate one padded image: stacked shifts and two sums, or copied windows.

    Windows of one element each, read one after the other, need no copy.
    """
    taps, area = math.prod(weight[2:]), math.prod(result[2:])
    if by_rows(result, stride):
        sums = 2 * result[1] * area if weight[2] > 1 else 0
        return stacked_elements(image, weight[3], stride, result[3]) + sums
    return (image[1] * taps + (result[1] if at_once(result) else 0)) * area


def scattering_elements(weight: Shape, gradient: Shape) -> int:
    """Return the elements of the products of one image's gradient and all taps, before they are scattered."""
    return math.prod(weight[1:]) * math.prod(gradient[2:])


def weight_gradient_elements(image: Shape, gradient: Shape, weight: Shape, stride: tuple[int, int]) -> int:
    """Return the elements of one image's share: stacked shifts and a product, or copied windows and gradient."""
    if by_rows(gradient, stride):
        product = weight[0] * weight[3] * weight[1]
        return stacked_elements(image, weight[3], stride, gradient[3]) + product
    return (image[1] * math.prod(weight[2:]) + gradient[1]) * math.prod(gradient[2:])


def worker_workspace_bytes(worker: WorkerProgram, limit_bytes: float) -> int:
    """Return the largest workspace of any call of a worker's kernels, in bytes; the kernels use it in turn."""
    kernels = (kernel for task in worker.tasks if isinstance(task, Compute) for kernel in task.kernels)
    calls = ((kernel, call) for kernel in kernels for call in kernel.calls)
    return max((_call_bytes(worker, kernel, call, limit_bytes) for kernel, call in calls), default=0)


def _call_bytes(worker: WorkerProgram, kernel: Kernel, call: SlicedCall, limit_bytes: float) -> int:
    combined = combined_bytes(worker, call)
    return combined + (_convolution_bytes(worker, kernel, call, limit_bytes) if kernel.op in CONVOLUTIONS else 0)


def combined_bytes(worker: WorkerProgram, call: SlicedCall) -> int:
    """Return the bytes of a call's own result if it is combined with earlier results; else 0."""
    if call.combine is None:
        return 0
    items = [ITEM_BYTES[worker.buffers[buffer].dtype] for buffer, _ in call.outputs]
    shapes = _shapes(worker, call.outputs)
    return sum(align(math.prod(shape) * item) for shape, item in zip(shapes, items, strict=True))


def _convolution_bytes(worker: WorkerProgram, kernel: Kernel, call: SlicedCall, limit_bytes: float) -> int:
    """Return the bytes that a part of the batch takes; groups of channels are processed one after the other."""
    shapes = _shapes(worker, (*call.inputs, *call.outputs))
    if not all(map(math.prod, shapes)):
        return 0
    by_group = _by_group(kernel, call, shapes)
    elements = CONVOLUTIONS[kernel.op](by_group, kernel.attributes)
    item = ITEM_BYTES[worker.buffers[call.outputs[0][0]].dtype]
    limit = part_bytes(limit_bytes, math.prod(by_group[_weight_of(kernel)]) * item)
    each, images = elements * item, shapes[0][0]
    return each * len(range(*batches(images, each, limit)[0].indices(images)))


def _weight_of(kernel: Kernel) -> int:
    """Return the position of the weight, or of its gradient, among a convolution's operands and result."""
    return 2 if kernel.op == "convolution_backward_weight" else 1


def _by_group(kernel: Kernel, call: SlicedCall, shapes: Shapes) -> Shapes:
    """Return the shapes of one group: its part of all channels and of the filters."""
    if kernel.attributes.get("groups", 1) == 1:
        return shapes
    start, stop = call.ranges["g"]
    split = [0 if number == _weight_of(kernel) else 1 for number in range(len(shapes))]
    return tuple(
        (*shape[:dim], shape[dim] // (stop - start), *shape[dim + 1 :])
        for shape, dim in zip(shapes, split, strict=True)
    )


def _forward(shapes: Shapes, attributes: Mapping[str, object]) -> int:
    image, weight, result = shapes
    return correlation_elements(_read(image, weight, result, attributes), weight, result, _pair(attributes, "stride"))


def _backward_input(shapes: Shapes, attributes: Mapping[str, object]) -> int:
    gradient, weight, result = shapes
    stride = _pair(attributes, "stride")
    if stride != (1, 1):
        return scattering_elements(weight, gradient)
    turned = (weight[1], weight[0], *weight[2:])
    return correlation_elements(_read(gradient, weight, result, attributes), turned, result, stride)


def _backward_weight(shapes: Shapes, attributes: Mapping[str, object]) -> int:
    gradient, image, weight = shapes
    read = _read(image, weight, gradient, attributes)
    return weight_gradient_elements(read, gradient, weight, _pair(attributes, "stride"))


CONVOLUTIONS = {
    "convolution": _forward,
    "convolution_backward_input": _backward_input,
    "convolution_backward_weight": _backward_weight,
}
"""Workspace elements per image, as functions of the shapes of a call's operands and result."""


def _read(image: Shape, weight: Shape, result: Shape, attributes: Mapping[str, object]) -> Shape:
    """Return the shape of an image reduced to the rows and columns that the windows of a result read."""
    pairs = zip(result[2:], weight[2:], _pair(attributes, "stride"), _pair(attributes, "dilation"), strict=True)
    read = [(extent - 1) * stride + (taps - 1) * apart + 1 for extent, taps, stride, apart in pairs]
    return (*image[:2], *read)


def _pair(attributes: Mapping[str, object], name: str) -> tuple[int, int]:
    along_y, along_x = cast("tuple[int, int]", attributes.get(name, (1, 1)))
    return along_y, along_x


def _shapes(worker: WorkerProgram, arrays: Iterable[tuple[int, Slices]]) -> Shapes:
    return tuple(extents(slices, worker.buffers[buffer].shape) for buffer, slices in arrays)


# Memory needs of a worker on its device, line by line, for plans with a limit, simulation and `execute`.
#
# Libraries use memory besides the arena and the kernels' workspace: these are their defaults, each with its source.
# A device file's reserved bytes include a context and NCCL's communicators, as measured.


MIB = 1 << 20
HOPPER = (9, 0)


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes of a device's memory, their purpose, and the source of the figure."""

    what: str
    nbytes: int
    source: str


@dataclass(frozen=True, slots=True)
class Libraries:
    """What the libraries' memory depends on.

    These are the device's compute capability, whether PyTorch's kernels run, and the number of peers that NCCL sends
    to.
    """

    capability: tuple[int, int]
    pytorch: bool = False
    nccl_peers: int = 0


CHANNEL_BYTES = 14 * MIB
"""Buffers of 10, 2 and 2 MiB per channel."""


def library_needs(libraries: Libraries) -> list[Need]:
    """Return the libraries' needs of a device's memory that are not zero, each with its source.

    PyTorch's first segments, for small and for large blocks, are mostly empty. NCCL has 32 channels per peer as on
    H100s, and at least 2 on older devices.
    """
    hopper = libraries.capability >= HOPPER
    cublas = 32 * MIB if hopper else 4 * MIB
    pytorch = (32 * MIB if hopper else 2 * 4096 * 1024 + 8 * 16 * 1024) * libraries.pytorch
    segments = (2 + 20) * MIB * libraries.pytorch
    channels = (32 if hopper else 2) * libraries.nccl_peers
    needs = (
        Need("cuBLAS workspace", cublas, "NVIDIA, cuBLAS, cublasSetWorkspace"),
        Need("PyTorch's cuBLAS workspace", pytorch, "pytorch, aten/src/ATen/cuda/CublasHandlePool.cpp"),
        Need("PyTorch's first segments", segments, "pytorch, c10/cuda/CUDACachingAllocator.cpp"),
        Need("NCCL's buffers", channels * CHANNEL_BYTES, "github.com/NVIDIA/nccl, issues 1685 and 1706"),
    )
    return [need for need in needs if need.nbytes]


def device_needs(worker: WorkerProgram, device: Device) -> list[Need]:
    """Return a worker's needs on a machine's device: arena, workspace, libraries and reserve."""
    spec = device.spec
    capability = None if spec.compute_capability is None else _capability(spec.compute_capability)
    return [
        arena_need(worker.arena_bytes),
        workspace_need(worker, spec.workspace_bytes),
        *([] if capability is None else library_needs(Libraries(capability))),
        Need("reserve", math.ceil(spec.reserved_bytes), f"the device type {spec.name}"),
    ]


def needed_bytes(worker: WorkerProgram, device: Device) -> int:
    """Return the bytes that a worker needs on its device in all."""
    return sum(need.nbytes for need in device_needs(worker, device))


def arena_need(nbytes: int) -> Need:
    """Return the need of the arena, which holds every buffer."""
    return Need("arena", nbytes, "the program")


def workspace_need(worker: WorkerProgram, limit_bytes: float) -> Need:
    """Return the largest workspace of any kernel, if a kernel may use `limit_bytes`."""
    return Need("workspace", worker_workspace_bytes(worker, limit_bytes), "planner/program/workspace.py")


def _capability(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor)
