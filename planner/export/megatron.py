"""Megatron-LM: the command line of its `pretrain_gpt.py`, with the names and types of its argument parser."""

from __future__ import annotations

from collections.abc import Iterator

from planner.export.setup import Launch, Setup, first, uneven_heads, uneven_sequence
from planner.export.transformers import Transformer

Flag = tuple[str, object]
"""A flag's name without dashes, and its value: True for a switch that is on, False for one that is off."""

SHARDED = {2: "optim_grads", 3: "optim_grads_params"}
"""Megatron-FSDP's names of ZeRO stages."""

CONSTANTS = {"lr": "lr", "momentum": "sgd-momentum", "weight_decay": "weight-decay"}
OPTIMIZERS = {"adam": "adam", "adamw": "adam", "sgd": "sgd", "momentum": "sgd"}


def limits(setup: Setup) -> str:
    """Return why Megatron-LM cannot run a setup, as Megatron Core 0.16 checks it; "" if it can."""
    transformer, parallel = setup.transformer, setup.parallel
    if transformer is None:
        return f"it builds stacks of identical transformer blocks, which {setup.model} is not"
    return first(
        "it has no ALiBi position biases" if transformer.positions == "alibi" else "",
        uneven_heads(setup, copies=True),
        uneven_sequence(setup),
        "its attention is causal" if not transformer.causal else "",
        "with ep, its tensor parallelism needs sequence parallelism: add sp"
        if parallel.ep > 1 and parallel.tp > 1 and not parallel.sp
        else "",
        "" if min(setup.stage_layers) else f"its stages have more chunks than the model's {transformer.layers} blocks",
    )


def notes(setup: Setup) -> tuple[str, ...]:
    """Return where Megatron-LM differs from the plan."""
    lines = ["replace --mock-data by your data, tokenizer and number of iterations"]
    if setup.half and setup.weights_are_half:
        lines.append(f"it keeps float32 copies of {setup.half} weights, which the plan does not")
    if setup.optimizer and setup.optimizer.name == "adam" and setup.optimizer.weight_decay:
        lines.append("its adam decouples weight decay from gradients (AdamW)")
    if setup.transformer and setup.transformer.experts and setup.parallel.ep == 1:
        lines.append("experts are not distributed over workers: set ep")
    if setup.parallel.zero in SHARDED:
        lines.append("CUDA_DEVICE_MAX_CONNECTIONS must not be 1 with Megatron-FSDP")
    return tuple(lines)


def write(setup: Setup, name: str) -> str:
    """Return a shell script that starts the training."""
    del name
    connections = setup.parallel.tp * setup.parallel.cp > 1 and setup.parallel.zero not in SHARDED
    lines = [f"{'CUDA_DEVICE_MAX_CONNECTIONS=1 ' * connections}{setup.torchrun} pretrain_gpt.py"]
    lines += [f"    --{flag}" if value is True else f"    --{flag} {value}" for flag, value in flags(setup)]
    head = f"#!/bin/sh\n# {setup.model}, {setup.parallel}: written by export-plan --to megatron\n"
    return head + " \\\n".join(lines) + "\n"


def flags(setup: Setup) -> list[Flag]:
    """Return every flag of the command line but switches that are off, in groups."""
    transformer = setup.transformer
    assert transformer is not None  # `cannot` says so
    every = (*_parallelism(setup), *_model(transformer, setup.parallel.tp), *_training(setup))
    return [flag for flag in every if flag[1] is not False]


def _parallelism(setup: Setup) -> Iterator[Flag]:
    parallel = setup.parallel
    yield "tensor-model-parallel-size", parallel.tp
    yield "pipeline-model-parallel-size", parallel.pp
    yield "context-parallel-size", parallel.cp
    if parallel.ep > 1:
        yield "expert-model-parallel-size", parallel.ep
    yield "sequence-parallel", parallel.sp
    if len({*setup.stage_layers}) > 1:
        yield "pipeline-model-parallel-layout", f"'{_layout(setup.stage_layers)}'"
    elif parallel.chunks > 1 and parallel.pp > 1:
        yield "num-virtual-stages-per-pipeline-rank", parallel.chunks
    yield "overlap-grad-reduce", parallel.dp * parallel.cp > 1
    yield "use-distributed-optimizer", parallel.zero > 0
    yield "overlap-param-gather", parallel.zero > 0
    if parallel.zero in SHARDED:
        yield "use-megatron-fsdp", True
        yield "data-parallel-sharding-strategy", SHARDED[parallel.zero]
        yield "ckpt-format", "fsdp_dtensor"
        yield "no-gradient-accumulation-fusion", True
    if parallel.recompute != "none":
        yield "recompute-granularity", parallel.recompute
    if parallel.recompute == "full":
        yield "recompute-method", "uniform"
        yield "recompute-num-layers", 1


def _layout(layers: tuple[int, ...]) -> str:
    """Return the chunks of blocks, in the order of the network: `Et*3|(t*4|)*6,t*4L`."""
    return f"E{'|'.join(f't*{count}' for count in layers)}L"


def _model(model: Transformer, tp: int) -> Iterator[Flag]:
    yield "num-layers", model.layers
    yield "hidden-size", model.width
    yield "ffn-hidden-size", model.hidden
    yield "num-attention-heads", model.heads
    yield "kv-channels", model.head_width
    if model.groups < model.heads:
        yield "group-query-attention", True
        yield "num-query-groups", model.groups
    yield "seq-length", model.sequence
    yield "max-position-embeddings", model.sequence
    yield "normalization", model.norm
    yield "position-embedding-type", {"learned": "learned_absolute"}.get(model.positions, model.positions)
    if model.positions == "rope":
        yield "rotary-base", int(model.rotary_base)
    yield "use-rope-scaling", model.stretched
    yield "swiglu", model.gated
    yield "disable-bias-linear", not model.bias
    yield "add-qkv-bias", model.qkv_bias and not model.bias
    yield "untie-embeddings-and-output-weights", not model.tied
    if model.experts:
        yield "num-experts", model.experts
        yield "moe-router-topk", model.chosen
        yield "moe-expert-capacity-factor", model.capacity
    yield "attention-dropout", 0.0
    yield "hidden-dropout", 0.0
    yield "tokenizer-type", "NullTokenizer"
    yield "vocab-size", model.vocabulary - 1  # the tokenizer adds the end of a document
    yield "padded-vocab-size", -(-model.vocabulary // tp) * tp


def _training(setup: Setup) -> Iterator[Flag]:
    yield "micro-batch-size", setup.micro_batch
    yield "global-batch-size", setup.batch
    if setup.half:
        yield setup.half, True
    if setup.float8:
        yield "fp8-format", "hybrid"
    if setup.optimizer is not None:
        yield "optimizer", OPTIMIZERS[setup.optimizer.name]
        for name, value in setup.constants.items():
            yield CONSTANTS.get(name, f"adam-{name}"), value
        yield "clip-grad", setup.optimizer.clip_norm or 0.0
    yield "train-iters", 100
    yield "mock-data", True


MEGATRON = Launch("Megatron-LM", limits, notes, write, "megatron", ("1f1b", "interleaved"), OPTIMIZERS, float8=True)
