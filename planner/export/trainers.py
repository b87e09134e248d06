"""Trainers that build models themselves: Megatron-LM and torchtitan.

Megatron-LM has the command line of its `pretrain_gpt.py`, with the names and types of its argument parser; torchtitan
the TOML file of a run, with the names of `JobConfig` in version 0.2, the last that reads such files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import accumulate, pairwise

from planner.export.setup import Launch, Setup, first, uneven_heads, uneven_sequence
from planner.export.transformers import Transformer

Flag = tuple[str, object]
"""A flag's name without dashes, and its value: True for a switch that is on, False for one that is off."""

SHARDED = {2: "optim_grads", 3: "optim_grads_params"}
"""Megatron-FSDP's names of ZeRO stages."""

CONSTANTS = {"lr": "lr", "momentum": "sgd-momentum", "weight_decay": "weight-decay"}
OPTIMIZERS = {"adam": "adam", "adamw": "adam", "sgd": "sgd", "momentum": "sgd"}


def megatron_limits(setup: Setup) -> str:
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


def megatron_notes(setup: Setup) -> tuple[str, ...]:
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


def script(setup: Setup, _name: str) -> str:
    """Return a shell script that starts the training."""
    connections = setup.parallel.tp * setup.parallel.cp > 1 and setup.parallel.zero not in SHARDED
    lines = [f"{'CUDA_DEVICE_MAX_CONNECTIONS=1 ' * connections}{setup.torchrun} pretrain_gpt.py"]
    lines += [f"    --{flag}" if value is True else f"    --{flag} {value}" for flag, value in flags(setup)]
    head = f"#!/bin/sh\n# {setup.model}, {setup.parallel}: written by export-plan --to megatron\n"
    return head + " \\\n".join(lines) + "\n"


def flags(setup: Setup) -> list[Flag]:
    """Return every flag of the command line but switches that are off, in groups."""
    transformer = setup.transformer
    assert transformer is not None  # `cannot` says so
    every = (*_megatron_parallelism(setup), *_model(transformer, setup.parallel.tp), *_training(setup))
    return [flag for flag in every if flag[1] is not False]


def _megatron_parallelism(setup: Setup) -> Iterator[Flag]:
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


MEGATRON = Launch(
    "Megatron-LM", megatron_limits, megatron_notes, script, "megatron", ("1f1b", "interleaved"), OPTIMIZERS, float8=True
)


SCHEDULES = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "Interleaved1F1B"}

ADAMS = {"adam": "Adam", "adamw": "AdamW"}

FLAVORS = {
    ("llama3", "8B"): (32, 4096, 14336),
    ("llama3", "70B"): (80, 8192, 28672),
    ("llama3", "405B"): (126, 16384, 53248),
}
"""Models of torchtitan that are among ours, with layers, width and width of the feed-forward layers."""

FLOAT8 = "quantize.linear.float8"
"""The name of the converter of linear layers to float8."""

Section = Mapping[str, object]


def torchtitan_limits(setup: Setup) -> str:
    """Say why torchtitan 0.2 cannot run a setup."""
    parallel = setup.parallel
    replicas = parallel.dp > 1 and not parallel.zero
    mixed = setup.half and not setup.weights_are_half and not parallel.zero
    beside = [f"{axis}={getattr(parallel, axis)}" for axis in ("pp", "tp") if getattr(parallel, axis) > 1]
    stages = parallel.pp if setup.schedule == "1f1b" and parallel.pp > 1 else 0
    single = setup.schedule == "zero-bubble" or (setup.schedule == "interleaved" and parallel.chunks == 1)
    return first(
        "it supports only models of token sequences" if setup.sequence is None else "",
        f"its {setup.schedule} schedule needs at least two chunks per stage" if single else "",
        ""
        if setup.transformer or parallel.chunks == 1
        else f"its chunks need identical blocks, which {setup.model} does not have",
        f"its 1f1b schedule needs at least {stages} micro-batches, one per stage"
        if stages > setup.micro_batches
        else "",
        uneven_heads(setup, copies=False),
        uneven_sequence(setup),
        "it also shards weights over context-parallel workers: set zero=3" if parallel.cp > 1 > parallel.zero else "",
        "its tensor parallelism includes sequence parallelism: add sp" if parallel.tp > 1 and not parallel.sp else "",
        "it shards gradients together with the optimizer state: set zero=2" if parallel.zero == 1 else "",
        f"it does not combine replicas with {beside[0]}: set zero=3" if beside and replicas else "",
        f"with {beside[0]}, it supports mixed precision only with zero=2 or 3" if beside and mixed else "",
        "it computes in float32 or bfloat16" if setup.half == "fp16" else "",
    )


def torchtitan_notes(setup: Setup) -> tuple[str, ...]:
    """Return where torchtitan differs from the plan."""
    lines = []
    if _flavor(setup) is None:
        lines.append(f"torchtitan has no model {setup.model}; register a TrainSpec under the name in [model]")
    if setup.parallel.recompute == "selective":
        lines.append("its selective recomputation keeps products and attention and recomputes the rest")
    if setup.half and setup.weights_are_half:
        lines.append("training.dtype is set in this file, because its default keeps float32 weights")
    return tuple(lines)


def torchtitan_file(setup: Setup, name: str) -> str:
    """Return the content of the TOML file."""
    script = f"{setup.torchrun} -m torchtitan.train --job.config_file {name}.toml"
    head = (
        f"# {setup.model}, {setup.parallel}: written by export-plan --to torchtitan, for torchtitan 0.2\n# {script}\n"
    )
    return head + "".join(_section(title, values) for title, values in sections(setup).items())


def sections(setup: Setup) -> dict[str, Section]:
    """Return the file's sections."""
    parallel = setup.parallel
    flavor, dtype = _flavor(setup), "bfloat16" if setup.half and setup.weights_are_half else "float32"
    name, size = flavor or (setup.model, setup.model)
    mixed = "bfloat16" if setup.half else "float32"
    at_once = setup.micro_batch if parallel.pp == 1 else setup.batch // parallel.dp
    return {
        "model": {"name": name, "flavor": size, **({"converters": [FLOAT8]} if setup.float8 else {})},
        **_optimizer(setup),
        "training": {
            "local_batch_size": at_once,
            "global_batch_size": setup.batch,
            "seq_len": setup.sequence,
            "dtype": dtype,
            "mixed_precision_param": mixed,
        },
        "parallelism": dict(_torchtitan_parallelism(setup)),
        "activation_checkpoint": {
            "mode": parallel.recompute,
            **({"selective_ac_option": "op"} if parallel.recompute == "selective" else {}),
        },
    }


def _torchtitan_parallelism(setup: Setup) -> Iterator[tuple[str, object]]:
    parallel = setup.parallel
    yield "data_parallel_replicate_degree", 1 if parallel.zero else parallel.dp
    yield "data_parallel_shard_degree", parallel.dp if parallel.zero else 1
    if parallel.zero:
        yield "fsdp_reshard_after_forward", "always" if parallel.zero == 3 else "never"
    yield "tensor_parallel_degree", parallel.tp
    yield "context_parallel_degree", parallel.cp
    if parallel.ep > 1:
        yield "expert_parallel_degree", parallel.ep
    yield "pipeline_parallel_degree", parallel.pp
    if parallel.pp > 1:
        yield "pipeline_parallel_schedule", SCHEDULES[setup.schedule]
        yield "pipeline_parallel_microbatch_size", setup.micro_batch
        if parallel.chunks > 1:
            yield "module_fqns_per_model_part", _chunks(setup)


def _chunks(setup: Setup) -> list[list[str]]:
    """Return the modules of every stage's chunk, in the order of the network."""
    ends = accumulate(setup.stage_layers, initial=0)
    chunks = [[f"layers.{layer}" for layer in range(*pair)] for pair in pairwise(ends)]
    return [["tok_embeddings", *chunks[0]], *chunks[1:-1], [*chunks[-1], "norm", "output"]]


def _optimizer(setup: Setup) -> dict[str, Section]:
    """Return the optimizer section; empty if torchtitan lacks the optimizer."""
    chosen = setup.optimizer
    return {} if chosen is None else {"optimizer": {"name": ADAMS[chosen.name], **setup.constants}}


def _flavor(setup: Setup) -> tuple[str, str] | None:
    model = setup.transformer
    if model is None or model.positions != "rope" or model.experts or not model.stretched:
        return None
    extents = model.layers, model.width, model.hidden
    return next((flavor for flavor, sizes in FLAVORS.items() if sizes == extents), None)


def _section(title: str, values: Section) -> str:
    lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    return "\n".join(["", f"[{title}]", *lines, ""])


TORCHTITAN = Launch(
    "torchtitan", torchtitan_limits, torchtitan_notes, torchtitan_file, "fsdp2", SCHEDULES, ADAMS, float8=True
)
