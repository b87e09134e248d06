"""Kernels: which nodes a software stack fuses into one launch, and what that costs on a device.

A kernel reads each outside tensor once and writes what others read. Data that it needs again after a sum that is longer
than a multiprocessor can hold is read twice. The parts of an operator, such as the mean of a norm, are computed with
it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil

import tdl
from planner.graph.ir import ITEM_BYTES
from planner.graph.micro_batches import BACKWARD, FORWARD
from planner.graph.order import KernelClass, class_of
from planner.layout.geometry import PRODUCTS
from simulator.projection.replica import NodeShare
from simulator.projection.stack import Fusion, Kernels
from topologies.kernels import ALIGNED, Kernel, Product
from topologies.machine import Device
from topologies.schema import Power

Readers = Mapping[str, Sequence[str]]

MOST = 1 << 16

GAP_S = 0.9e-6
"""Seconds between two kernels that are launched in time (NVIDIA, Getting Started with CUDA Graphs, 2019: on a V100)."""


@dataclass(frozen=True, slots=True)
class Work:
    """Device seconds, of which `roof_s` at the best attainable rates; launches; flop of products.

    `product_s` is the part of `roof_s` for products on tensor cores; the rest draws the power of streaming.
    `kernel_class` is that of a single kernel, None for several.
    """

    seconds: float = 0.0
    roof_s: float = 0.0
    launches: int = 0
    product_operations: float = 0.0
    product_s: float = 0.0
    kernel_class: KernelClass | None = None

    def __add__(self, other: Work) -> Work:
        """Return both, one after the other."""
        seconds, roof_s = self.seconds + other.seconds, self.roof_s + other.roof_s
        operations, product_s = self.product_operations + other.product_operations, self.product_s + other.product_s
        return Work(seconds, roof_s, self.launches + other.launches, operations, product_s)

    def part(self, share: float) -> Work:
        """Return a share of the work, with the same number of launches."""
        drawn = (self.product_operations * share, self.product_s * share)
        return Work(self.seconds * share, self.roof_s * share, self.launches, *drawn)

    def slowed(self, factor: float) -> Work:
        """Return the work on a device that takes `factor` times as long. On a faster device the best rates rise too."""
        least = min(1.0, factor)
        seconds, roof_s, product_s = self.seconds * factor, self.roof_s * least, self.product_s * least
        return replace(self, seconds=seconds, roof_s=roof_s, product_s=product_s)


def readers_of(shares: Iterable[NodeShare]) -> Readers:
    """Return, for each tensor, the operators that read it."""
    readers: defaultdict[str, list[str]] = defaultdict(list)
    for share in shares:
        for name in share.reads:
            readers[name].append(share.operator)
    return readers


def fused(shares: Sequence[NodeShare], fusion: Fusion, readers: Readers) -> Iterator[tuple[NodeShare, ...]]:
    """Yield the runs of nodes that a stack computes by one kernel. An exchange before a node starts a new run."""
    run: list[NodeShare] = []
    for share in shares:
        if run and not _joins(run, share, fusion, readers):
            yield tuple(run)
            run = []
        run.append(share)
    if run:
        yield tuple(run)


def without_intermediates(shares: Sequence[NodeShare], kernels: Iterable[Sequence[NodeShare]]) -> tuple[NodeShare, ...]:
    """Return the shares without backward reads of tensors that a forward kernel can compute again, element by element.

    The backward pass then reads what the kernel computes them from, its inputs, sums and what it writes for others,
    unless these are larger. A gated unit recomputes the activation of its gate, a norm its input in float32.
    """
    read_forward = Counter(name for share in shares if share.phase == FORWARD for name in share.reads)
    kept = {name: size for share in shares if share.phase == BACKWARD for name, size in share.reads.items()}
    sizes, instead = dict(kept), dict[str, frozenset[str]]()
    for run in kernels:
        if len(run) > 1 and all(share.category in ELEMENTS for share in run):
            sizes |= {name: size for share in run for name, size in (*share.reads.items(), *share.writes.items())}
            sources = _sources(run, kept, read_forward)
            added = frozenset[str]().union(*sources.values()) - kept.keys()
            if sum(map(sizes.__getitem__, added)) <= sum(map(sizes.__getitem__, sources)):
                instead |= sources
    result = []
    for share in shares:
        again = [name for name in share.reads if name in instead] if share.phase == BACKWARD else []
        reads = {name: nbytes for name, nbytes in share.reads.items() if name not in again}
        reads |= {name: sizes[name] for replaced in again for name in instead[replaced]}
        result.append(replace(share, reads=reads) if again else share)
    return tuple(result)


ELEMENTS = ("elementwise", "reduction")
"""Categories of operators that a kernel computes element by element, or sums up within rows."""


def _sources(
    run: Sequence[NodeShare], kept: Collection[str], read_forward: Mapping[str, int]
) -> Mapping[str, frozenset[str]]:
    """Return, for each tensor that only a run and the backward pass read, what it can be computed from again."""
    read = Counter(name for share in run for name in share.reads)
    sources = {name: frozenset([name]) for name in read}
    for share in run:
        for name in share.writes:
            if share.category == "elementwise" and read[name] == read_forward[name]:
                sources[name] = frozenset().union(*map(sources.__getitem__, share.reads))
    return {name: parts for name, parts in sources.items() if name in kept and parts != {name}}


def _joins(run: Sequence[NodeShare], share: NodeShare, fusion: Fusion, readers: Readers) -> bool:
    last = run[-1]
    apart = fusion == "operators" and (last.adds_terms or share.adds_terms)
    if apart or share.before or last.after or is_product(share) or share.phase != last.phase:
        return False
    if is_product(run[0]):
        return len(run) == 1 and _adds_bias(last, share)
    if last.operator == share.operator and last.node.outputs[0] not in last.node.inputs:
        return _reads_of(run, share) or _shares_operand(run, share)
    if fusion == "operators":
        return False
    if fusion == "elementwise":
        return _reads_of(run, share) and _joins_elementwise(run, share, readers)
    return _reads_of(run, share) or _shares_operand(run, share)


def _joins_elementwise(run: Sequence[NodeShare], share: NodeShare, readers: Readers) -> bool:
    """Return whether a node joins a run of element-wise ones.

    A mask joins a softmax if only that reads it; dropout does not join.
    """
    reduced = any(member.category == "reduction" for member in run)
    if share.category == run[-1].category == "elementwise" and not reduced:
        return True
    drops = any(tdl.catalog[member.node.op].only_in_training for member in (*run, share))
    elementwise = all(
        member.category == "elementwise" for member in (run if share.category == "reduction" else (share,))
    )
    elementwise = elementwise and all(member.category in ("elementwise", "reduction") for member in run)
    alone = all(len(set(readers[name])) == 1 for member in run for name in member.writes)
    return elementwise and not drops and alone


def _adds_bias(product: NodeShare, share: NodeShare) -> bool:
    """Return whether a node adds a few elements to each row of a product, in the product's own kernel.

    Library convolutions are different: in PyTorch and in TensorFlow, another kernel adds the bias.
    """
    others = sum(nbytes for name, nbytes in share.reads.items() if name not in product.writes)
    return (
        product.category != "convolution"
        and share.category == "elementwise"
        and len(share.reads) == BIAS_OPERANDS
        and _reads_of((product,), share)
        and sum(share.writes.values()) == sum(product.writes.values())
        and others * BIAS_SHARE < sum(share.writes.values())
    )


BIAS_OPERANDS = 2
BIAS_SHARE = 16
"""A bias has at most this fraction (1/16) of the elements of the product's result."""


def is_product(share: NodeShare) -> bool:
    """Return whether a node is never fused with what precedes it: products, convolutions, attention."""
    return share.category in PRODUCTS


def _reads_of(run: Sequence[NodeShare], share: NodeShare) -> bool:
    return any(name in earlier.writes for name in share.reads for earlier in run)


def _shares_operand(run: Sequence[NodeShare], share: NodeShare) -> bool:
    return any(share.reads.keys() & earlier.reads.keys() for earlier in run)


def written_by(run: Sequence[NodeShare], readers: Readers) -> Mapping[str, int]:
    """Return the bytes of each tensor that a kernel writes: what others read, or nobody."""
    inside = Counter(name for share in run for name in share.reads)
    return {
        name: nbytes
        for share in run
        for name, nbytes in share.writes.items()
        if not inside[name] or len(readers[name]) > inside[name]
    }


def kernel_of(run: Sequence[NodeShare], readers: Readers, *, rereads: bool = True) -> Kernel:
    """Return a run of nodes as one kernel."""
    written = {name for share in run for name in share.writes}
    reads = {name: nbytes for share in run for name, nbytes in share.reads.items() if name not in written}
    writes = written_by(run, readers)
    nbytes = sum(reads.values()) + sum(writes.values()) + (_read_again(run) if rereads else 0)
    return Kernel(run[-1].category, run[-1].dtype, sum(share.operations for share in run), float(nbytes))


KEPT_BYTES = 64 << 10
"""Bytes of a sum's operands that a multiprocessor holds: shared memory of a P100 (NVIDIA, Pascal tuning guide)."""


def _read_again(run: Sequence[NodeShare]) -> int:
    """Return the bytes that long sums read and later nodes of the run read again, as in a norm over a batch."""
    summed: dict[str, int] = {}
    again: dict[str, int] = {}
    for share in run:
        again |= {name: summed[name] for name in share.reads if name in summed and share.category != "reduction"}
        sums = max(1, *share.writes.values())
        summed |= {
            name: nbytes
            for name, nbytes in share.reads.items()
            if share.category == "reduction" and nbytes * ITEM_BYTES[share.dtype] > KEPT_BYTES * sums
        }
    return sum(again.values())


def work_of(run: Sequence[NodeShare], readers: Readers, device: Device, kernels: Kernels) -> Work:
    """Return the cost of a run of nodes as one kernel; of several products, one kernel each."""
    if all(share.is_view for share in run):
        return Work()
    kernel = kernel_of(run, readers, rereads=kernels.rereads)
    passes = max(kernels.passes_of(share.function) for share in run)
    if is_product(run[0]):
        kernel = replace(kernel, category=run[0].category)
    products = run[0].products if is_product(run[0]) else ()
    if run[0].attention is not None:
        attention = replace(run[0].attention, kernel=kernels.attention)
        kernel = replace(kernel, operations=attention.operations, attention=attention)
    if not products:
        work = _work(device, kernel)
        return replace(work, seconds=passes * work.seconds, launches=ceil(passes), kernel_class=_class_of(run[-1]))
    dtype = kernels.products if kernels.products and run[0].with_weights else kernel.dtype
    part = Kernel(kernel.category, dtype, kernel.operations / len(products), kernel.nbytes / len(products))
    work = sum((_work(device, _multiplied(part, product, kernels)) for product in products), Work())
    return replace(work, kernel_class=_class_of(run[0]))


def _class_of(share: NodeShare) -> KernelClass:
    return class_of(share.category, share.function, attends=share.attention is not None)


def _multiplied(part: Kernel, product: Product, kernels: Kernels) -> Kernel:
    """Return the kernel that a stack uses for a product whose rows may not start at multiples of 16 bytes."""
    if product.aligned == ALIGNED or kernels.unaligned == "slower":
        return replace(part, product=product)
    return replace(part, product=replace(product, aligned=ALIGNED))


def converted(shares: Iterable[NodeShare]) -> Mapping[str, int]:
    """Return the operands that products convert to 8 bits, with their bytes before."""
    multiplying = (share for share in shares if share.products and share.with_weights)
    return {name: nbytes for share in multiplying for name, nbytes in share.reads.items()}


def conversion(nbytes: Iterable[int], dtype: str, device: Device) -> Work:
    """Return the cost of converting operands of these sizes to 8 bits: each is read once and written twice.

    They are written as they are and transposed, because products in 8 bits need both operands contiguous along the sum.
    """
    copies = (Kernel("elementwise", dtype, 0.0, operand * (1 + 2 / ITEM_BYTES[dtype])) for operand in nbytes)
    return sum((replace(_work(device, copy), roof_s=0.0) for copy in copies), Work())


@lru_cache(MOST)
def _work(device: Device, kernel: Kernel) -> Work:
    """Return the cost of a kernel. Its roof is the peak rate of its dtype, or the memory bandwidth."""
    attained, seconds = device.attained(kernel.dtype), device.kernel_s(kernel)
    if kernel.category not in PRODUCTS:
        roof_s = min(kernel.nbytes / device.spec.memory_bandwidth_bytes_per_s, seconds)
        return Work(seconds + GAP_S, roof_s, 1)
    roof_s = min(kernel.operations / attained, seconds)  # Winograd's algorithm needs fewer operations
    on_tensor_cores = attained > (device.spec.peak_flop_per_s.float32 or attained)
    return Work(seconds + GAP_S, roof_s, 1, kernel.operations, roof_s if on_tensor_cores else 0.0)


# Power: how much longer a step takes if its products would exceed the device's power limit.


def within_limit_s(power: Power | None, seconds: float, product_s: float, memory_s: float) -> float:
    """Return the seconds of a step on a device that lowers its clock until its mean power is within the limit.

    At full clock the step takes `seconds`, of which products at their best rate would take `product_s` and streaming at
    full memory bandwidth `memory_s`. At a fraction f of the clock, products take 1/f times as long and draw f^3 times
    the power above idle, because voltage scales with the clock. The step takes T(f) = seconds + product_s (1/f - 1),
    and needs J(f) = (product_w - idle_w) product_s f^2 + (memory_w - idle_w) memory_s joules above idle, for which it
    takes at least J(f) / (limit_w - idle_w). T decreases with f and J increases: the result is the minimum over 0 < f
    <= 1 of the larger of both.

    For every f, both increase with each of the three arguments, so lower bounds of these give a lower bound of the
    result. It is also convex in them: with x = product_s / f, T is linear and product_s f^2 = product_s^3 / x^2 is
    convex. So mean values over devices give at most the result of the device that draws most.
    """
    if power is None:
        return seconds
    margin_w, memory_j = power.limit_w - power.idle_w, (power.memory_w - power.idle_w) * memory_s
    product_j, other_j = (power.product_w - power.idle_w) * product_s, margin_w * (seconds - product_s)
    if product_j + memory_j <= margin_w * seconds:
        return seconds
    clock, slower = 1.0, 0.0  # Newton's method approaches the root of a convex function from above
    while True:
        value = product_j * clock**3 + (memory_j - other_j) * clock - margin_w * product_s
        slower = clock - value / (3 * product_j * clock**2 + memory_j - other_j)
        if slower >= clock:
            return (product_j * clock**2 + memory_j) / margin_w
        clock = slower
