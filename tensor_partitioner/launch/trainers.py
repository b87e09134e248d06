"""Launch files of torchtitan (TOML), DeepSpeed (JSON), Accelerate and Axolotl (YAML).

Those of torchtitan have the names of versions up to 0.2. Those of DeepSpeed and Accelerate name no model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from typing import Any

from planner.errors import InputError
from planner.parallel import RECOMPUTE
from tensor_partitioner.display import nearest
from tensor_partitioner.launch.launch import Fields, LaunchFile, section

ADAPTERS = ("adapter", "unfrozen_parameters", "reward_model", "lisa_n_layers")
"""Fields of Axolotl with which only some weights are trained, or another loss is used."""

SHARDING = {"full_shard": 3, "hybrid_shard": 3, "shard_grad_op": 2, "no_shard": 0, "1": 3, "2": 2, "3": 0, "4": 3}
"""ZeRO stages of FSDP's sharding strategies, which may be given by number."""

PRECISIONS = {"bf16": "mixed", "fp16": "mixed-float16", "fp8": "mixed-float8", "no": "float32", "false": "float32"}
ADAMS = ("adam", "adamw", "adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused", "sgd")
"""Optimizers that are modelled exactly."""

CHECKPOINTED = {"none": "false", "full": "true"}


def read_deepspeed(path: str, said: Mapping[str, Any], model: str | None) -> LaunchFile:
    """Read DeepSpeed's configuration. Raises InputError if states are offloaded or no model is given."""
    zero, pipeline = section(path, said, "zero_optimization"), section(path, said, "pipeline")
    tensors, optimizer = section(path, said, "tensor_parallel"), section(path, said, "optimizer")
    for name in ("offload_optimizer", "offload_param"):
        if section(path, zero, name).get("device", "none") != "none":
            raise InputError(f"{path}: zero_optimization.{name}: expected states on devices, found them offloaded")
    fields = Fields(path, {**zero, **said, "stage": zero.get("stage"), **pipeline, **tensors})
    if fields.whole("train_micro_batch_size_per_gpu", "train_batch_size") is None:
        fields.assumed.append("train_micro_batch_size_per_gpu 1")
    if fields.values.get("activation_checkpointing"):
        fields.assumed.append("no activation checkpointing, which the model's code decides")
    return fields.launch(
        engine="DeepSpeed", stack="eager", model=_required(path, model),
        options={"dtype": _half(fields, said), "optimizer": _optimizer(fields, optimizer.get("type"))},
        degrees={
            "zero": fields.stage("stage"), "micro_batch": fields.whole("train_micro_batch_size_per_gpu") or 1,
            "tp": fields.whole("autotp_size"), "pp": fields.whole("stages"),
            "recompute": "none" if (fields.text("activation_checkpoint_interval") or "0") == "0" else "full",
        },
        batch=fields.whole("train_batch_size"), accumulation=fields.whole("gradient_accumulation_steps") or 1,
        names={"zero": "zero_optimization.stage", "micro_batch": "train_micro_batch_size_per_gpu"},
    )  # fmt: skip


def _half(fields: Fields, said: Mapping[str, Any]) -> str:
    sections = {name: section(fields.path, said, name).get("enabled") for name in ("bf16", "fp16")}
    if True in sections.values():
        return "mixed" if sections["bf16"] is True else "mixed-float16"
    if "auto" in sections.values() or not any(name in said for name in sections):
        fields.assumed.append("mixed precision in bfloat16")
        return "mixed"
    return "float32"


def _optimizer(fields: Fields, kind: object) -> str:
    text = str(kind or "adamw").lower()
    if text not in ADAMS:
        fields.assumed.append(f"AdamW with float32 states instead of {kind}")
    elif kind is None:
        fields.assumed.append("optimizer AdamW")
    return "sgd" if text == "sgd" else "adam" if text == "adam" else "adamw"


def _required(path: str, model: str | None) -> str:
    if model is None:
        raise InputError(f"{path}: names no model: expected --model of `diagnose`, as in --model hf:Qwen/Qwen2.5-7B")
    return model


def read_accelerate(path: str, said: Mapping[str, Any], model: str | None) -> LaunchFile:
    """Read the file that `accelerate config` writes.

    Raises InputError if states are offloaded or settings are elsewhere.
    """
    fsdp, deepspeed = section(path, said, "fsdp_config"), section(path, said, "deepspeed_config")
    fields = Fields(path, {**said, **fsdp, **deepspeed})
    fields.assumed.extend(("micro-batch 1 (the training script sets it)", "optimizer AdamW"))
    kind = (fields.text("distributed_type") or "NO").upper()
    if kind not in {"FSDP", "DEEPSPEED", "MULTI_GPU", "NO"}:
        raise InputError(f"{path}: distributed_type: expected FSDP, DEEPSPEED, MULTI_GPU or NO, found {kind}")
    if (other := fields.text("deepspeed_config_file")) is not None:
        raise InputError(f"{path}: deepspeed_config_file: expected its fields here; diagnose {other} --model NAME")
    _refuse_offloaded(fields)
    strategy = (fields.text("fsdp_sharding_strategy") or "full_shard").lower()
    sharded = SHARDING.get(strategy, 3) if _reshards(fields) else 2
    zero = sharded if kind == "FSDP" else fields.stage("zero_stage") if kind == "DEEPSPEED" else 0
    return fields.launch(
        engine="Accelerate", stack="fsdp2" if kind == "FSDP" else "eager", model=_required(path, model),
        options={
            "dtype": PRECISIONS.get(str(said.get("mixed_precision", "no")).lower(), "mixed"), "optimizer": "adamw",
        },
        degrees={
            "zero": zero, "micro_batch": 1,
            "recompute": "full" if fields.switch("fsdp_activation_checkpointing") else "none",
        },
        accumulation=fields.whole("gradient_accumulation_steps") or 1, devices=fields.whole("num_processes"),
        names={"zero": "fsdp_sharding_strategy (ZeRO)", "recompute": "fsdp_activation_checkpointing"},
        spelled={"recompute": CHECKPOINTED},
    )  # fmt: skip


def _refuse_offloaded(fields: Fields, *names: str) -> None:
    for name in names or ("fsdp_offload_params", "offload_params", "offload_optimizer_device", "offload_param_device"):
        if (fields.text(name) or "false").lower() not in {"false", "none", "0"}:
            raise InputError(f"{fields.path}: {name}: expected states on devices, found them offloaded")


def _reshards(fields: Fields) -> bool:
    return (fields.text("fsdp_reshard_after_forward", "reshard_after_forward") or "true").lower() != "false"


def read_axolotl(path: str, said: Mapping[str, Any], model: str | None) -> LaunchFile:
    """Read Axolotl's configuration of a full fine-tuning. Raises InputError for adapters and offloaded states."""
    fsdp = section(path, said, "fsdp_config")
    fields = Fields(path, {**said, **fsdp})
    for name in ADAPTERS:
        if said.get(name):
            raise InputError(f"{path}: {name}: expected a training of all weights, found {said[name]}")
    deepspeed = (fields.text("deepspeed") or "").replace("_", "").lower()
    if "offload" in deepspeed:
        raise InputError(f"{path}: deepspeed: expected states on devices, found {said['deepspeed']}")
    _refuse_offloaded(fields)
    base = model or fields.text("base_model")
    if base is None or not isinstance(said.get("base_model", ""), str):
        raise InputError(f"{path}: base_model: expected the name of a model, found {said.get('base_model')}")
    full = bool(said.get("fsdp") or fsdp)
    stage = next((number for number in (1, 2, 3) if f"zero{number}" in deepspeed), 0)
    sequence = fields.whole("sequence_len")
    halves = {name: fields.text(name) is not None and fields.switch(name) for name in ("bf16", "fp16", "fp8")}
    dtype = "mixed-float8" if halves["fp8"] else "mixed-float16" if halves["fp16"] else "mixed"
    if str(said.get("bf16")).lower() == "false" and not halves["fp16"]:
        dtype = "float32"
    options: dict[str, object] = {"dtype": dtype, "optimizer": _optimizer(fields, said.get("optimizer"))}
    sizes = [fields.whole(name) for name in ("dp_shard_size", "dp_replicate_size", "tensor_parallel_size")]
    return fields.launch(
        engine="Axolotl", stack="fsdp2" if full else "eager",
        model=base if model or base.startswith("hf:") else f"hf:{base}",
        options=options | ({"sequence": sequence} if sequence else {}),
        degrees={
            "zero": (3 if _reshards(fields) else 2) if full else stage,
            "micro_batch": fields.whole("micro_batch_size") or 1,
            "recompute": "full" if _checkpoints(fields) else "none",
            "cp": fields.whole("sequence_parallel_degree", "context_parallel_size"),
            "tp": fields.whole("tensor_parallel_size"),
        },
        accumulation=fields.whole("gradient_accumulation_steps") or 1,
        devices=prod(size or 1 for size in sizes) if sizes[0] else None,
        names={
            "zero": "fsdp / deepspeed (ZeRO)", "micro_batch": "micro_batch_size", "recompute": "gradient_checkpointing",
            "tp": "tensor_parallel_size", "cp": "context_parallel_size",
        },
        spelled={"recompute": CHECKPOINTED},
    )  # fmt: skip


def _checkpoints(fields: Fields) -> bool:
    if fields.text("gradient_checkpointing") in {"unsloth", "offload"} or fields.switch("gradient_checkpointing"):
        return True
    return fields.switch("fsdp_activation_checkpointing", "activation_checkpointing")


QWENS = ("0.6b", "1.7b", "4b", "8b", "14b", "32b", "30b-a3b", "235b-a22b")
MODELS = {
    "llama2": {"7b": "llama-2-7b", "13b": "hf:meta-llama/Llama-2-13b-hf", "70b": "llama-2-70b"},
    "llama3": {
        **{size: f"hf:meta-llama/Llama-3.2-{size.upper()}" for size in ("1b", "3b")},
        **{size: f"llama-3.1-{size}" for size in ("8b", "70b", "405b")},
        "debugmodel": "hf:torchtitan/llama3-debugmodel",
    },
    "llama4": {
        "17bx16e": "hf:meta-llama/Llama-4-Scout-17B-16E",
        "17bx128e": "hf:meta-llama/Llama-4-Maverick-17B-128E",
        "debugmodel": "hf:torchtitan/llama4-debugmodel",
    },
    "qwen3": {
        **{size: f"hf:Qwen/Qwen3-{size.upper()}" for size in QWENS},
        **{flavor: f"hf:torchtitan/qwen3-{flavor}" for flavor in ("debugmodel", "debugmodel_moe")},
    },
    "deepseek_v3": {
        "debugmodel": "hf:torchtitan/deepseek_v3-debugmodel", "16b": "hf:deepseek-ai/DeepSeek-V2-Lite",
        "236b": "hf:deepseek-ai/DeepSeek-V2", "671b": "hf:deepseek-ai/DeepSeek-V3",
    },
}  # fmt: skip
"""torchtitan's models, by name and flavor, and our names for them."""

SAME_SIZE = "_(?:(?:flex|varlen)(?:_attn)?|irope)$"
"""Ends of the names of flavors that differ from others in the attention's kernel or mask."""

NAMES = {
    "tp": "tensor_parallel_degree", "cp": "context_parallel_degree", "zero": "fsdp_reshard_after_forward",
    "recompute": "activation_checkpoint.mode", "micro_batch": "local_batch_size",
}  # fmt: skip
"""torchtitan's names for the words of named parallelism."""

PIPELINED = NAMES | {
    "pp": "pipeline_parallel_degree", "schedule": "pipeline_parallel_schedule",
    "micro_batch": "pipeline_parallel_microbatch_size",
}  # fmt: skip
"""The same with a pipeline. It stays one: without it, a micro-batch is the whole local batch."""

USUAL_BATCH, USUAL_SEQUENCE = 8, 2048
"""Defaults of torchtitan's JobConfig."""

SPELLED = {
    "recompute": {kind: kind for kind in RECOMPUTE}, "zero": {"2": "never", "3": "always"},
    "schedule": {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved:2": "Interleaved1F1B"},
    "pp": {str(stages): str(stages) for stages in range(2, 65)},
}  # fmt: skip
"""torchtitan's spelling of values of named parallelism."""

SCHEDULES = {"1f1b": "1f1b", "gpipe": "gpipe", "interleaved1f1b": "interleaved:2"}


def read_toml(path: str, nested: Mapping[str, Any], model: str | None) -> LaunchFile:
    """Read a configuration. Raises InputError for an unknown model or schedule."""
    sections = {name: section for name, section in nested.items() if isinstance(section, dict)}
    fields = Fields(
        path, {f"{of}.{name}": value for of, section in sections.items() for name, value in section.items()}
    )
    _refuse_offloaded(fields, "training.enable_cpu_offload")
    pp, cp, tp = (_degree(fields, axis) for axis in ("pipeline", "context", "tensor"))
    zero, devices = _sharded(fields, pp, pp * cp * tp)
    batch, micro = _at_once(fields, pp)
    sequence = fields.whole("training.seq_len") or USUAL_SEQUENCE
    eight = fields.switch("float8.enable_float8_linear") or "float8" in str(fields.values.get("model.converters"))
    single = (fields.text("training.mixed_precision_param") or "bfloat16") == "float32"
    half = fields.text("training.dtype") == "bfloat16"
    dtype = "mixed-float8" if eight else "float32" if single else "bfloat16" if half else "mixed"
    name = (fields.text("optimizer.name") or "AdamW").lower()
    if fields.text("optimizer.name") is None:
        fields.assumed.append("optimizer AdamW")
    elif name not in {"adam", "adamw"}:
        fields.assumed.append(f"AdamW instead of {name}")
    if "mx" in str(fields.values.get("model.converters")):
        fields.assumed.append("bfloat16 products instead of MX formats")
    if (layer_option := fields.text("activation_checkpoint.selective_ac_option")) not in {None, "op"}:
        fields.assumed.append(f"selective_ac_option op instead of {layer_option}")
    return fields.launch(
        engine="torchtitan",
        stack="fsdp2-compiled" if fields.switch("training.compile", "compile.enable") else "fsdp2",
        model=_model(fields) if model is None else model,
        options={"sequence": sequence, "dtype": dtype, "optimizer": name if name == "adam" else "adamw"},
        degrees={
            "pp": pp, "tp": tp, "cp": cp, "ep": _degree(fields, "expert"), "sp": tp > 1,
            "zero": zero, "recompute": _recomputed(fields), "micro_batch": micro, "schedule": _schedule(fields, pp),
        },
        batch=batch, accumulation=1 if pp == 1 else _local(fields) // micro, devices=devices,
        names=NAMES if pp == 1 else PIPELINED,
        spelled=SPELLED,
    )  # fmt: skip


def _sharded(fields: Fields, pp: int, others: int) -> tuple[int, int | None]:
    """Return the ZeRO stage, and the number of devices if it is set.

    Raises InputError for replicas of shards (HSDP).
    """
    shard = fields.text(*_places("data_parallel_shard_degree")) or "-1"
    replicas = fields.whole(*_places("data_parallel_replicate_degree")) or 1
    if replicas > 1 and shard != "1":
        raise InputError(f"{fields.path}: data_parallel_replicate_degree: expected 1 with sharding, found {replicas}")
    resharded = (fields.text("parallelism.fsdp_reshard_after_forward") or "default").lower()
    stage = 2 if resharded == "never" or (resharded == "default" and pp > 1) else 3
    devices = int(shard) * replicas * others if shard.isdecimal() else None
    return 0 if shard == "1" and _degree(fields, "context") == 1 else stage, devices


def _places(*names: str) -> list[str]:
    """Return the names of settings of parallelism, which versions have in different sections."""
    return [f"{of}.{name}" for name in names for of in ("parallelism", "training", "experimental")]


def _degree(fields: Fields, axis: str) -> int:
    older = ["sequence_parallel_degree"] if axis == "tensor" else []
    return fields.whole(*_places(f"{axis}_parallel_degree", *older)) or 1


def _local(fields: Fields) -> int:
    return fields.whole("training.local_batch_size", "training.batch_size") or USUAL_BATCH


def _at_once(fields: Fields, pp: int) -> tuple[int | None, int]:
    """Return the global batch, None if it is not set, and the samples of a micro-batch."""
    if fields.whole("training.local_batch_size", "training.batch_size") is None:
        fields.assumed.append(f"local_batch_size {USUAL_BATCH}")
    total = fields.text("training.global_batch_size")
    batch = None if total in {None, "-1"} else fields.whole("training.global_batch_size")
    said = fields.whole(*_places("pipeline_parallel_microbatch_size"))
    return batch, (said or 1) if pp > 1 else _local(fields)


def _model(fields: Fields) -> str:
    name, flavor = (fields.text("model.name") or "llama3").lower(), (fields.text("model.flavor") or "").lower()
    name, flavor = name.removesuffix("_ft"), re.sub(SAME_SIZE, "", flavor)
    flavors = MODELS.get(name, {})
    if flavor not in flavors:
        of, known = ("flavor", list(flavors)) if flavors else ("name", list(MODELS))
        said = (flavor if flavors else name) or "none"
        raise InputError(
            f"{fields.path}: model.{of}: expected {', '.join(known)}, found {said}{nearest(said, known)}; --model "
            "names another"
        )
    return flavors[flavor]


def _recomputed(fields: Fields) -> str:
    mode = str(fields.values.get("activation_checkpoint.mode", "")).lower()
    if mode not in RECOMPUTE:
        mode = "selective"
        fields.assumed.append(f"activation checkpointing {mode}")
    return mode


def _schedule(fields: Fields, pp: int) -> str:
    said = fields.text(*_places("pipeline_parallel_schedule")) or "1F1B"
    if pp > 1 and said.lower() not in SCHEDULES:
        raise InputError(
            f"{fields.path}: pipeline_parallel_schedule: expected 1F1B, GPipe or Interleaved1F1B, found {said}"
        )
    return SCHEDULES.get(said.lower(), "1f1b")
