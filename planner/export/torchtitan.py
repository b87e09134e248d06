"""torchtitan: the TOML file of a run, with the names of `JobConfig` in version 0.2, the last that reads such files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from planner.export.setup import Launch, Setup, first, only_schedules

SCHEDULES = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "Interleaved1F1B"}

OPTIMIZERS = {"adam": "Adam", "adamw": "AdamW"}

FLAVORS = {
    ("llama3", "8B"): (32, 4096, 14336),
    ("llama3", "70B"): (80, 8192, 28672),
    ("llama3", "405B"): (126, 16384, 53248),
}
"""Models of torchtitan that are among ours, with layers, width and width of the feed-forward layers."""

ENDS_LIKE_LAYERS = 2
"""By default torchtitan counts embeddings and the output layer as one layer each when it splits stages."""

Section = Mapping[str, object]


def cannot(setup: Setup) -> str:
    """Return why torchtitan 0.2 cannot run a setup; "" if it can."""
    parallel = setup.parallel
    replicas = parallel.dp > 1 and not parallel.zero
    beside = [f"{axis}={getattr(parallel, axis)}" for axis in ("pp", "tp") if getattr(parallel, axis) > 1]
    return first(
        "it supports only models of token sequences" if setup.sequence is None else "",
        only_schedules(setup, tuple(SCHEDULES)),
        "its tensor parallelism includes sequence parallelism: add sp" if parallel.tp > 1 and not parallel.sp else "",
        "it shards gradients together with the optimizer state: set zero=2" if parallel.zero == 1 else "",
        f"it does not combine replicas with {beside[0]}: set zero=3" if beside and replicas else "",
        "it computes in float32 or bfloat16" if setup.half == "fp16" else "",
    )


def notes(setup: Setup) -> tuple[str, ...]:
    """Return where torchtitan differs from the plan."""
    lines = []
    if setup.optimizer and setup.optimizer.name not in OPTIMIZERS:
        lines.append(f"it has no optimizer {setup.optimizer.name} and uses its default, AdamW")
    if _flavor(setup) is None:
        lines.append(f"torchtitan has no model {setup.model}; register a TrainSpec under the name in [model]")
    if setup.parallel.cp > 1:
        lines.append("it also shards weights over context-parallel workers")
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
    kept = {"name": flavor[0], "flavor": flavor[1]} if flavor else {"name": setup.model, "flavor": setup.model}
    mixed = "bfloat16" if setup.half else "float32"
    at_once = setup.micro_batch if parallel.pp == 1 else setup.batch // parallel.dp
    return {
        "model": kept,
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
        yield "pipeline_parallel_schedule", SCHEDULES[parallel.schedule.partition(":")[0]]
        yield "pipeline_parallel_microbatch_size", setup.micro_batch
        if parallel.chunks > 1 and setup.transformer:
            parts = parallel.pp * parallel.chunks
            yield "pipeline_parallel_layers_per_stage", -(-(setup.transformer.layers + ENDS_LIKE_LAYERS) // parts)


def _optimizer(setup: Setup) -> dict[str, Section]:
    """Return the optimizer section; empty if torchtitan lacks the optimizer."""
    chosen = setup.optimizer
    if chosen is None or chosen.name not in OPTIMIZERS:
        return {}
    decay = chosen.decay if chosen.name == "adamw" else chosen.weight_decay
    names = {name: getattr(chosen, name) for name in ("lr", "beta1", "beta2", "eps")}
    return {"optimizer": {"name": OPTIMIZERS[chosen.name], **names, "weight_decay": decay}}


def _flavor(setup: Setup) -> tuple[str, str] | None:
    model = setup.transformer
    if model is None or model.positions != "rope" or model.experts or not model.stretched:
        return None
    extents = model.layers, model.width, model.hidden
    return next((flavor for flavor, sizes in FLAVORS.items() if sizes == extents), None)


def _section(title: str, values: Section) -> str:
    lines = [f"{name} = {_value(value)}" for name, value in values.items()]
    return "\n".join(["", f"[{title}]", *lines, ""])


def _value(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower()


TORCHTITAN = Launch("torchtitan", cannot, notes, write)
