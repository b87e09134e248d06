"""Engines that shard a user's module: FSDP2 or DistributedDataParallel of PyTorch, and DeepSpeed.

PyTorch's have Python files that shard a module over data-parallel workers; DeepSpeed its JSON configuration, with the
names that DeepSpeed 0.17 and later read.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from planner.export.setup import Launch, Setup, first
from planner.graph.ir import ITEM_BYTES, entries_of

TEMPLATE = Path(__file__).parent / "fsdp2.txt"
HALVES = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}


def fsdp2_limits(setup: Setup) -> str:
    """Return why FSDP2 by itself cannot run a setup; "" if it can."""
    parallel = setup.parallel
    return first(
        "pipeline stages need torch.distributed.pipelining" if parallel.pp > 1 else "",
        "context parallelism needs torch.distributed.tensor.experimental" if parallel.cp > 1 else "",
        "expert parallelism needs support in the module itself" if parallel.ep > 1 else "",
        "tensor parallelism needs DTensor: export-plan --to dtensor" if parallel.tp > 1 else "",
        "there is nothing to shard" if parallel.dp == 1 else "",
        "recomputation needs torch.utils.checkpoint in the module" if parallel.recompute != "none" else "",
        f"fully_shard takes no scalar: make {setup.scalar} a vector of one" if parallel.zero and setup.scalar else "",
    )


def fsdp2_notes(setup: Setup) -> tuple[str, ...]:
    """Return where FSDP2 differs from the plan."""
    is_half = setup.half and setup.weights_are_half
    return (f"create the module in {setup.half}, as the plan's weights are",) if is_half else ()


def moved_bytes(setup: Setup) -> int:
    """Return the bytes that all ranks together receive in an iteration, whatever the collectives' algorithm.

    Gathering n bytes on all k workers costs (k - 1) n, and so does reducing n bytes to shares. ZeRO 0 all-reduces
    gradients once, ZeRO 1 reduces them to shares once, ZeRO 2 for every micro-batch. Weights are gathered once; with
    ZeRO 3, twice for every micro-batch.
    """
    zero, count = setup.parallel.zero, setup.micro_batches
    gathers = {0: 0, 3: 2 * count}.get(zero, 1)
    reductions = {0: 2, 1: 1}.get(zero, count)
    elements = _elements(setup)
    kept = sum(number * ITEM_BYTES[dtype] for dtype, number in elements.items())
    sent = kept if setup.weights_are_half or not setup.half else elements.total() * ITEM_BYTES["bfloat16"]
    return (setup.parallel.dp - 1) * (gathers * sent + reductions * kept)


def _elements(setup: Setup) -> Counter[str]:
    """Return the number of sharded elements by dtype, padded by rows so that all workers have equal shares."""
    graph, ranks = setup.graph, setup.parallel.dp if setup.parallel.zero else 1
    trained = {name for name in graph.updates if graph.tensors[name].role == "weight"}
    entries = {entry.tensor: entry for entry in entries_of(graph).values() if entry.tensor in trained}
    elements: Counter[str] = Counter()
    for entry in entries.values():
        rows = entry.shape[0] if entry.shape else 1
        elements[entry.dtype] += math.prod(entry.shape) // max(1, rows) * -(-rows // ranks) * ranks
    return elements


def fsdp2_file(setup: Setup, name: str) -> str:
    """Return the content of the Python file, which will be imported under this name."""
    parallel = setup.parallel
    values = {
        "MODEL": setup.model,
        "MODULE": name,
        "WORKERS": str(parallel.dp),
        "BYTES": f"{moved_bytes(setup):,}",
        "ZERO": str(parallel.zero),
        "MICRO_BATCHES": str(setup.micro_batches),
        "HALF": "None" if setup.weights_are_half or not setup.half else HALVES[setup.half],
    }
    return re.sub(r"@(\w+)@", lambda match: values[match[1]], TEMPLATE.read_text())


FSDP2 = Launch("FSDP2", fsdp2_limits, fsdp2_notes, fsdp2_file, "fsdp2")


OPTIMIZERS = {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD", "momentum": "SGD"}


def deepspeed_limits(setup: Setup) -> str:
    """Return why DeepSpeed cannot run a setup; "" if it can."""
    parallel = setup.parallel
    pipelined, selective = parallel.pp > 1, parallel.recompute == "selective"
    return first(
        "it has no context parallelism; it exchanges heads instead (Ulysses)" if parallel.cp > 1 else "",
        "expert parallelism needs DeepSpeed's own layers in the model" if parallel.ep > 1 else "",
        "its tensor parallelism does not split norms along the sequence" if parallel.sp else "",
        "with pipelines, tensor parallelism needs Megatron's modules" if pipelined and parallel.tp > 1 else "",
        f"its pipelines support only zero=0 or 1, not {parallel.zero}" if parallel.zero > 1 and pipelined else "",
        "its tensor parallelism supports only zero=0, 1 or 2" if parallel.tp > 1 and parallel.zero > 2 else "",
        "its pipelines recompute whole layers: set recompute=full" if pipelined and selective else "",
    )


def deepspeed_notes(setup: Setup) -> tuple[str, ...]:
    """Return what must be set in Python, and where DeepSpeed differs from the plan."""
    lines = []
    if setup.parallel.pp > 1:
        lines.append(f"the model must be a deepspeed.pipe.PipelineModule with num_stages={setup.parallel.pp}")
    if setup.parallel.tp > 1:
        lines.append("tensor parallelism is that of AutoTP, which recognizes Hugging Face modules by name")
    if setup.parallel.recompute != "none" and setup.parallel.pp == 1:
        lines.append("enable recomputation in the model, for example with deepspeed.checkpointing.checkpoint")
    if setup.half and setup.weights_are_half:
        lines.append(f"it keeps float32 copies of {setup.half} weights, which the plan does not")
    return tuple(lines)


def deepspeed_file(setup: Setup, _name: str) -> str:
    """Return the content of the JSON file."""
    return msgspec.json.format(msgspec.json.encode(config(setup)), indent=2).decode() + "\n"


def config(setup: Setup) -> dict[str, Any]:
    """Return the configuration."""
    parallel = setup.parallel
    result: dict[str, Any] = {
        "train_batch_size": setup.batch,
        "train_micro_batch_size_per_gpu": setup.micro_batch,
        "gradient_accumulation_steps": setup.micro_batches,
        "zero_optimization": {"stage": parallel.zero},
    }
    if setup.half:
        result[setup.half] = {"enabled": True}
    if setup.optimizer is not None:
        params: dict[str, Any] = setup.constants
        if "beta1" in params:
            params["betas"] = [params.pop("beta1"), params.pop("beta2")]
        result["optimizer"] = {"type": OPTIMIZERS[setup.optimizer.name], "params": params}
        if setup.optimizer.clip_norm is not None:
            result["gradient_clipping"] = setup.optimizer.clip_norm
    if parallel.tp > 1:
        result["tensor_parallel"] = {"autotp_size": parallel.tp}
    if parallel.pp > 1:
        interval = int(parallel.recompute != "none")
        result["pipeline"] = {"stages": parallel.pp, "activation_checkpoint_interval": interval}
    return result


DEEPSPEED = Launch("DeepSpeed", deepspeed_limits, deepspeed_notes, deepspeed_file, "eager", ("1f1b",), OPTIMIZERS)
