"""Calls of PyTorch's fused attention for GPUs, on its meta device: signatures, shapes and which kernels are chosen."""

import pytest

pytest.importorskip("torch")
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from executor.torch import attention
from executor.torch.attention import EFFICIENT, FLASH, Operands, kernels_for

KERNELS = {"flash": (FLASH, torch.bfloat16), "efficient": (EFFICIENT, torch.float32)}
ENDS_OF_SEQUENCES = slice(6, 8)


class Calls(TorchDispatchMode):
    """Notes every operator with its arguments."""

    def __init__(self):
        super().__init__()
        self.made = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.made.append((func._schema.name, args))
        return func(*args, **(kwargs or {}))


def meta(*shape, dtype):
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.mark.parametrize("name", KERNELS)
def test_a_pair_of_kernels_is_called_as_its_schema_says(name):
    kernels, dtype = KERNELS[name]
    query, key, value = (meta(2, 4, length, 16, dtype=dtype) for length in (37, 45, 45))
    operands = Operands(query, key, value, causal=False, scale=0.3)
    result, total = kernels.forward(operands)
    assert (result.shape, result.dtype, total.shape, total.dtype) == (query.shape, dtype, (2, 4, 37), torch.float32)
    gradients = kernels.backward(operands, result, result, total)
    assert [gradient.shape for gradient in gradients] == [query.shape, key.shape, value.shape]


def test_flash_attention_is_of_sequences_of_one_length():
    """PyTorch runs the kernel for many lengths wherever it is given tensors of their ends, be they empty."""
    x = meta(2, 4, 32, 16, dtype=torch.bfloat16)
    total = meta(4, 2, 32, dtype=torch.float32).transpose(0, 1)
    with Calls() as calls:
        FLASH.backward(Operands(x, x, x, causal=True, scale=0.3), x, x, total)
    ((args),) = (args for name, args in calls.made if "flash" in name)
    assert args[ENDS_OF_SEQUENCES] == (None, None)
    assert args[5].is_contiguous()  # of the logarithms it reads no strides


@pytest.mark.parametrize(
    ("dtype", "width", "expected"),
    [
        ("bfloat16", 64, FLASH),
        ("float16", 256, FLASH),
        ("float16", 264, EFFICIENT),
        ("float32", 20, EFFICIENT),
        ("float32", 6, None),
        ("bfloat16", 20, None),
        ("float64", 64, None),
    ],
)
def test_rows_of_heads_are_of_whole_16_bytes_and_of_32_bits_at_most(dtype, width, expected):
    assert kernels_for(meta(1, 1, 8, width, dtype=getattr(torch, dtype))) is expected


@pytest.mark.parametrize(("dtype", "expected"), [("float16", None), ("bfloat16", None), ("float32", EFFICIENT)])
def test_older_gpus_have_no_kernels_of_16_bits(dtype, expected, monkeypatch):
    class Query:
        device, shape, itemsize = torch.device("cuda"), (1, 1, 8, 64), getattr(torch, dtype).itemsize

    query = Query()
    query.dtype = getattr(torch, dtype)
    monkeypatch.setattr(attention.torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert kernels_for(query) is expected
