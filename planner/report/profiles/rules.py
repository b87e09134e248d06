"""Rules for the class of a kernel, by the PyTorch operator that launched it, else by its own name.

The names are those of libraries: operators in PyTorch's own namespaces, kernels of CUDA's libraries, operations of NCCL
and gloo. The first matching pattern decides.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from planner.graph.kernel_classes import KernelClass
from planner.report.profiles.profile import COLLECTIVE

Rules = Sequence[tuple[KernelClass, re.Pattern[str]]]

ANNOTATIONS: Rules = (("optimizer", re.compile(r"Optimizer\.(step|zero_grad)#")),)
"""Annotations that PyTorch puts around its optimizers, whatever runs inside."""

OPERATORS: Rules = tuple(
    (name, re.compile(rf"(?:aten|fsdp|torch\.distributed\.ddp\.reducer|torch::distributed::reducer)::_*(?:{pattern})"))
    for name, pattern in dict[KernelClass, str](
        {
            "optimizer": r"fused_(?:adam|sgd)|fused_adagrad",
            "attention": r"\w*(?:attention|flash|scaled_dot_product)\w*",
            "normalization": r"(?:native_|fused_|cudnn_)?(?:layer|batch|group|rms|instance)_norm",
            "product": r"\w*convolution|conv\d|(?:linear|matmul|einsum|addmv|mv|dot|"
            r"(?:scaled_|grouped_|sparse_)*(?:add|b|ba)*mm)(?:_backward)?\b",
            "reduction": r"\w*softmax|cross_entropy|\w*_loss|sum|mean|a?(?:max|min)(?!imum)|\w*norm\b|"
            r"arg(?:max|min)|topk|sort|cumsum|var|std|prod|logsumexp",
            "movement": r"to|copy|clone|contiguous|cat|stack|chunk|index|gather|scatter|embedding|fill|zero|ones|full|"
            r"split|foreach_(?:copy|zero)|narrow|slice|select|roll|pad|constant_pad|repeat|all_gather_copy|masked_scatter",
        }
    ).items()
)  # fmt: skip
"""Operators, by the start of their names after underscores."""

LEAF: Rules = (("element-wise", re.compile(r"aten::|torch::distributed::reducer::")),)
"""An operator without a rule that calls no other."""

KERNELS: Rules = (
    ("optimizer", re.compile(r"multi_tensor_apply|adam|optimizer", re.IGNORECASE)),
    ("attention", re.compile(r"fmha|flash|attention|mha_", re.IGNORECASE)),
    ("normalization", re.compile(r"(?:layer|batch|group|rms)_?norm|(?:ln|bn)_[fb]w|gammabeta|moments", re.IGNORECASE)),
    ("movement", re.compile(r"nchwtonhwc|nhwctonchw", re.IGNORECASE)),
    ("product", re.compile(r"gem[mv]|cutlass|nvjet|xmma|cublas|cudnn|cijk_|[wd]grad|convolve|winograd", re.IGNORECASE)),
    ("reduction", re.compile(r"softmax|nll_loss|pool|reduce|triton_(?:red|per)_|argmax|topk|sort", re.IGNORECASE)),
    ("movement", re.compile(r"mem ?(?:cpy|set)|copy|catarray|gather|scatter|index|embedding|fill", re.IGNORECASE)),
    ("element-wise", re.compile(r"elementwise|vectorized|triton_poi_|pointwise|dropout", re.IGNORECASE)),
)  # fmt: skip

COMMUNICATION = re.compile(r"^(?:nccl|rccl|gloo:|mscclpp|void nccl)", re.IGNORECASE)
OPERATIONS = {
    "all-reduce": "all_?reduce", "all-gather": "all_?gather", "reduce-scatter": "reduce_?scatter",
    "all-to-all": "all_?to_?all", "broadcast": "broad_?cast", "reduce": "reduce", "send and receive": "send|recv",
}  # fmt: skip


def class_by(rules: Rules, name: str) -> KernelClass | None:
    """Return the class of the first rule that matches a name at its start (a kernel: anywhere), or None.

    >>> class_by(OPERATORS, "aten::addmm"), class_by(OPERATORS, "aten::_softmax"), class_by(OPERATORS, "my::norm")
    ('product', 'reduction', None)
    """
    find = re.Pattern.search if rules is KERNELS else re.Pattern.match
    return next((kind for kind, pattern in rules if find(pattern, name)), None)


def collective_of(name: str, group: str = "") -> str | None:
    """Return a library's collective as spans name it, with its group; None for any other kernel.

    >>> collective_of("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)"), collective_of("gemm")
    ('collective: all-reduce', None)
    """
    if not COMMUNICATION.match(name):
        return None
    kind = next((kind for kind, pattern in OPERATIONS.items() if re.search(pattern, name, re.IGNORECASE)), "other")
    return f"{COLLECTIVE}{kind}{f', group {group}' if group else ''}"
