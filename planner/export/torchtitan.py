"""torchtitan: the TOML file of a run, with the names of `JobConfig` in version 0.2, the last that reads such files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import accumulate, pairwise

from planner.export.setup import Launch, Setup, first, uneven_heads, uneven_sequence

SCHEDULES = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "Interleaved1F1B"}

OPTIMIZERS = {"adam": "Adam", "adamw": "AdamW"}

FLAVORS = {
    ("llama3", "8B"): (32, 4096, 14336),
    ("llama3", "70B"): (80, 8192, 28672),
    ("llama3", "405B"): (126, 16384, 53248),
}
"""Models of torchtitan that are among ours, with layers, width and width of the feed-forward layers."""

FLOAT8 = "quantize.linear.float8"
"""The name of the converter of linear layers to float8."""

Section = Mapping[str, object]


def limits(setup: Setup) -> str:
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


def notes(setup: Setup) -> tuple[str, ...]:
    """Return where torchtitan differs from the plan."""
    lines = []
    if _flavor(setup) is None:
        lines.append(f"torchtitan has no model {setup.model}; register a TrainSpec under the name in [model]")
    if setup.parallel.recompute == "selective":
        lines.append("its selective recomputation keeps products and attention and recomputes the rest")
    if setup.half and setup.weights_are_half:
        lines.append("training.dtype is set in this file, because its default keeps float32 weights")
    return tuple(lines)


def write(setup: Setup, name: str) -> str:
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
        "parallelism": dict(_parallelism(setup)),
        "activation_checkpoint": {
            "mode": parallel.recompute,
            **({"selective_ac_option": "op"} if parallel.recompute == "selective" else {}),
        },
    }


def _parallelism(setup: Setup) -> Iterator[tuple[str, object]]:
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
    return {} if chosen is None else {"optimizer": {"name": OPTIMIZERS[chosen.name], **setup.constants}}


def _flavor(setup: Setup) -> tuple[str, str] | None:
    model = setup.transformer
    if model is None or model.positions != "rope" or model.experts or not model.stretched:
        return None
    extents = model.layers, model.width, model.hidden
    return next((flavor for flavor, sizes in FLAVORS.items() if sizes == extents), None)


def _section(title: str, values: Section) -> str:
    lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    return "\n".join(["", f"[{title}]", *lines, ""])


TORCHTITAN = Launch("torchtitan", limits, notes, write, "fsdp2", SCHEDULES, OPTIMIZERS, float8=True)
