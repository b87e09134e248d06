"""What a row of a set may say, by name: the fields, what else their columns are called, and how they are read."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from results.scoreboard.cells import (
    UNITS,
    Cell,
    Quantity,
    best_or,
    one_of,
    read_count,
    read_degree,
    read_factor,
    read_share,
    read_switch,
    read_text,
    spelled,
    words,
)


def said(read: Callable[[str], Cell], meaning: str, also: str = "") -> Any:
    """Declare a field of a row: how its cell is read, what it means, and what else its column may be called."""
    names = [name.strip() for name in also.split(",") if name.strip()]
    return field(default=None, metadata={"read": read, "meaning": meaning, "also": names})


PRECISION: dict[Cell, str] = {
    "mixed": "bf16, bfloat16, bf16-mixed, amp_bf16, bf16 mixed",
    "mixed-float16": "fp16, float16, half, amp, amp_fp16, fp16-mixed, f16",
    "float32": "fp32, f32, float, single",
    "bfloat16": "pure bf16, bf16-true, bf16 without masters",
    "mixed-float8": "fp8, float8, amp_fp8, e4m3, fp8 mixed, te_fp8, mxfp8, fp8 mx, fp8 cs",
}
RECOMPUTE: dict[Cell, str] = {
    "none": "no, false, 0, off, n",
    "full": "yes, true, 1, on, all, block, layers, uniform, segments, full recompute, fullac, y",
    "selective": "sel, selective op, op, attention, attn, attn_only, core_attn, sac, selective 1",
}
ZERO: dict[Cell, str] = {
    0: "none, no, false, ddp, no_shard, dp, replicated",
    1: "zero1, zero-1, distributed optimizer, dist opt, true, yes, stage 1, os",
    2: "zero2, zero-2, shard_grad_op, stage 2, os g",
    3: "zero3, zero-3, fsdp, fsdp1, fsdp2, full_shard, fullsharding, full sharding, stage 3, full-shard",
}
ARCHITECTURE: dict[Cell, str] = {
    "gpt": "gpt2, gpt3, opt, decoder, bloom, megatron, transformer, mpt",
    "llama": "llama2, llama3, mistral, qwen, swiglu, qwen2",
    "bert": "encoder, roberta",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One measured run, as far as its set says; None is what it does not say.

    `line` counts the lines of its file from 1. Bytes and seconds; a step is one update of the weights.
    """

    line: int
    model: str | None = said(read_text, "name of the model, known by its sizes or by the zoo", "name, size, model name")
    architecture: str | None = said(spelled(ARCHITECTURE), "kind of transformer", "arch, family, model type")
    layers: int | None = said(read_count, "blocks", "num layers, n layers, number of layers, blocks, depth")
    hidden: int | None = said(
        read_count, "width of a block", "hidden size, d model, width, model dim, dim, embedding size, n embd"
    )
    heads: int | None = said(read_count, "attention heads", "attention heads, num heads, num attention heads, n heads")
    kv_heads: int | None = said(
        read_count,
        "heads of keys and values",
        "groups, query groups, num query groups, num key value heads, n kv heads, num kv heads",
    )
    head_size: int | None = said(read_count, "width of a head", "head dim, head width, kv channels")
    ffn: int | None = said(
        read_count, "width of fully connected layers", "ffn hidden size, intermediate size, ffn size, d ff, mlp hidden"
    )
    experts: int | None = said(read_degree, "experts of a layer", "num experts, n experts")
    chosen: int | None = said(
        read_count, "experts that a token passes", "top k, topk, moe topk, moe top k, experts per token, active experts"
    )
    capacity: float | None = said(
        read_factor, "tokens of an expert, of its equal share", "capacity factor, moe capacity factor, expert capacity"
    )
    sequence: int | None = said(
        read_count,
        "tokens of a sample",
        "seq, seq len, sequence length, seq length, seqlen, context length",
    )
    vocabulary: int | None = said(read_count, "different tokens", "vocab, vocab size, vocabulary size")
    tied: bool | None = said(read_switch, "embeddings are the output layer's weights", "tied embeddings")
    dropout: float | None = said(read_share, "probability that an element is dropped", "hidden dropout")
    attention_dropout: float | None = said(read_share, "the same of what a position attends to", "attn dropout")
    attention: bool | None = said(
        one_of(dict.fromkeys(("flash", "flash attention", "fa2", "fa3", "sdpa", "true", "yes", "1"), True)
               | dict.fromkeys(("unfused", "eager", "matrix", "false", "no", "0", "stored"), False)),
        "flash, or with its matrix stored", "flash, attention implementation, flash attention",
    )  # fmt: skip
    options: str | None = said(read_text, "options of a zoo model: image=224, width=2", "model options")
    precision: str | None = said(spelled(PRECISION), "of weights and activations", "dtype, data type, mixed precision")
    machine: str | None = said(read_text, "a machine's name or file; K for a family's number", "topology, cluster")
    gpu: str | None = said(read_text, "type of GPU", "device, device type, gpu type, accelerator, gpu name, hardware")
    per_node: int | None = said(read_count, "devices of a node", "gpus per node, devices per node, gpus node")
    power_limit_w: float | None = said(
        read_factor, "watts that a GPU may draw, where not its type's", "power limit, tdp"
    )
    network: str | None = said(read_text, "a GPU's share of the network: a type of link, or Gbit/s", "network gbit s")
    devices: int | None = said(
        read_count, "devices", "gpus, num gpus, n gpus, ngpu, number of gpus, world size, gpu count, ranks, workers"
    )
    nodes: int | None = said(read_count, "nodes, where the devices are not said", "num nodes, n nodes, node count")
    tp: int | None = said(
        read_degree, "tensor parallel", "tensor parallelism, tensor parallel, tp size, tensor model parallel size, "
        "tensor parallel size, tensor mp size"
    )  # fmt: skip
    pp: int | None = said(
        read_degree, "pipeline stages", "pipeline parallelism, pipeline parallel, pp size, "
        "pipeline model parallel size, pipeline parallel size, pipeline mp size, stages"
    )  # fmt: skip
    dp: int | None = said(
        read_degree, "data parallel", "data parallelism, data parallel, dp size, data parallel size, fsdp size"
    )
    cp: int | None = said(read_degree, "context parallel", "context parallelism, context parallel, cp size")
    ep: int | None = said(read_degree, "expert parallel", "expert parallelism, expert parallel, ep size")
    chunks: int | str | None = said(
        best_or(read_degree), "chunks of layers of a stage",
        "vp, vpp, virtual pipeline, interleaving, virtual stages, model chunks, virtual pipeline size",
    )  # fmt: skip
    schedule: str | None = said(
        one_of({"1f1b": "1f1b", "gpipe": "gpipe", "afab": "gpipe", "interleaved": "interleaved", "zero-bubble":
                "zero-bubble", "interleaved1f1b": "interleaved", "interleaved 1f1b": "interleaved", "zb": "zero-bubble",
                "none": "1f1b", "zbh1": "zero-bubble", "zb h1": "zero-bubble", "non interleaved": "1f1b"}),
        "order of micro-batches", "pipeline schedule, pp schedule, pp engine",
    )  # fmt: skip
    micro_batch: int | str | None = said(
        best_or(read_count), "samples of a data parallel worker at once",
        "mbs, micro batch size, microbatch size, microbatch, mb, micro bs",
    )  # fmt: skip
    accumulation: int | None = said(
        read_degree, "micro-batches of a step", "gradient accumulation, grad accum, gradient accumulation steps, "
        "micro batches, num micro batches, gas, batch accumulation per replica, grad acc, "
        "batch accum"
    )  # fmt: skip
    global_batch: int | None = said(
        read_count, "samples of a step", "gbs, global batch size, batch, batch size, global bs, train batch size"
    )
    device_batch: int | None = said(
        read_count, "samples of a step, of each device", "batch per gpu, per gpu batch size, local batch size, "
        "batch size per gpu, device batch size, local batch"
    )  # fmt: skip
    batch_tokens: int | None = said(
        read_count,
        "tokens of a step",
        "global batch tokens, tokens per step, tokens per batch, batch size tokens, "
        "global batch size t, global batch size tokens",
    )
    recompute: str | None = said(
        spelled(RECOMPUTE), "activations that are computed again", "activation checkpointing, recomputation, actckpt, "
        "ac, activation recomputation, act ckpt, gradient checkpointing, checkpointing, recompute granularity"
    )  # fmt: skip
    zero: int | None = said(
        spelled(ZERO), "what data parallel workers share out", "zero stage, sharding, sharding strategy, fsdp, "
        "data parallel sharding, distributed optimizer, optimizer sharding"
    )  # fmt: skip
    sp: bool | None = said(
        read_switch, "sequence parallel", "sequence parallel, sequence parallelism, seq parallel, seq par"
    )
    optimizer: str | None = said(
        spelled({"adam": "fused adam, fusedadam", "adamw": "decoupled adamw, decoupledadamw", "sgd": "gradient descent",
                 "momentum": "sgd momentum", "none": "forward and backward"}),
        "what updates the weights; none: forward and backward alone", "optim",
    )  # fmt: skip
    framework: str | None = said(read_text, "what trained it", "stack, system, library, software, trainer")
    compiled: bool | None = said(read_switch, "by torch.compile", "compile, torch compile")
    seconds: float | None = said(
        Quantity("s"), "of a step", "iteration time, step time, time, time per iteration, elapsed time per iteration, "
        "time per step, latency, seconds per step, seconds per iteration"
    )  # fmt: skip
    samples_per_s: float | None = said(
        Quantity(""), "of all devices", "samples per second, sequences per second, images per second, throughput, "
        "samples s, seq s, images s, throughput s s"
    )  # fmt: skip
    samples_per_s_per_device: float | None = said(
        Quantity(""), "of one device", "samples per second per gpu, samples s gpu, seq s gpu"
    )
    tokens_per_s: float | None = said(
        Quantity(""), "of all devices", "tokens per second, tokens s, tok s, throughput tokens s, tps, throughput t s"
    )
    tokens_per_s_per_device: float | None = said(
        Quantity(""), "of one device", "tokens per second per gpu, tokens s gpu, tokens per gpu per second, tok s gpu, "
        "wps, tokens sec gpu, tokens gpu s, tokens per sec per gpu, tgs, "
        "tps gpu, throughput t s gpu"
    )  # fmt: skip
    model_flop_per_s: float | None = said(
        Quantity("flop/s"), "of one device, without what is computed again", "tflops, tflop s gpu, tflops per gpu, "
        "model tflops, tflops gpu, mtflops, model tflop, model tflops per gpu, tflop s per gpu, "
        "throughput per gpu tflop s gpu"
    )  # fmt: skip
    hardware_flop_per_s: float | None = said(
        Quantity("flop/s"), "of one device, with what is computed again", "hardware tflops, tflop s gpu hardware, "
        "hardware tflops per gpu, achieved tflop s per gpu, achieved tflops, htflops"
    )  # fmt: skip
    mfu: float | None = said(Quantity("share"), "model operations of the peak", "model flops utilization")
    hfu: float | None = said(Quantity("share"), "all operations of the peak", "hardware flops utilization")
    memory: float | None = said(
        Quantity("bytes"), "most that a device's memory held", "memory per gpu, peak memory, max memory, memory usage, "
        "peak memory per gpu, memory reserved, memory allocated, mem, peak mem, max memory reserved"
    )  # fmt: skip
    memory_of: str | None = said(
        spelled(dict.fromkeys(("all", "reserved", "allocated", "states", "activations"), "")),
        "what the memory is of: all, reserved or allocated by the framework, states (weights, gradients, optimizer), "
        "activations",
    )
    oom: bool | None = said(read_switch, "out of memory", "out of memory, is oom")
    status: str | None = said(read_text, "how it ended; OOM for want of memory", "result, state, outcome")
    part: str | None = said(
        one_of({"fit": "fit", "fitted": "fit", "train": "fit", "test": "test", "held out": "test"}),
        "whether anything was fitted on the row", "split",
    )  # fmt: skip


MEASURED = (
    "seconds", "samples_per_s", "samples_per_s_per_device", "tokens_per_s", "tokens_per_s_per_device",
    "model_flop_per_s", "hardware_flop_per_s", "mfu", "hfu",
)  # fmt: skip
"""What says how long a step took, the most direct first."""

FIELDS = {column.name: column for column in fields(Row) if column.name != "line"}


def plain(name: str) -> str:
    """Return a column's name as names are compared: "# GPUs" is "gpus", "GradAccum" and "grad_accum" are alike."""
    return words(name).replace(" ", "")


def _names() -> dict[str, str]:
    known: dict[str, str] = {}
    for name, column in FIELDS.items():
        for spelling in (name, *column.metadata["also"]):
            if known.setdefault(plain(spelling), name) != name:
                raise ValueError(f"{spelling!r} would be both {known[plain(spelling)]} and {name}")
    return known


NAMES = _names()
"""From everything a column may be called, as `plain` has it, to the field."""

SPELLED = tuple(words(spelling) for name, column in FIELDS.items() for spelling in (name, *column.metadata["also"]))
"""Everything a column may be called, in words."""


def field_of(header: str) -> tuple[str, float | None] | None:
    """Return the field that a column's header means, and its unit's scale where the header has one; None for none.

    A unit stands in brackets or at the end: "iteration time (ms)", "peak memory GiB".
    """
    if (name := NAMES.get(plain(header))) is not None:
        return name, None
    match = re.fullmatch(r"(.*?)[\s_(\[,/]+([a-zµ%/]+)[)\]]?\s*", header.strip(), re.IGNORECASE)
    if match is None or (name := NAMES.get(plain(match[1]))) is None:
        return None
    read = FIELDS[name].metadata["read"]
    if isinstance(read, Quantity):
        scale = UNITS.get(read.dimension, {}).get(match[2].lower())
        return None if scale is None else (name, scale)
    return (name, None) if header.rstrip().endswith((")", "]")) else None
