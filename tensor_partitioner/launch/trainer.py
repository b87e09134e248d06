"""Launch files of DeepSpeed (JSON), Accelerate and Axolotl (YAML). Only Axolotl's name their model."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from planner.errors import InputError
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
    assumed: list[str] = []
    if fields.whole("train_micro_batch_size_per_gpu", "train_batch_size") is None:
        assumed.append("train_micro_batch_size_per_gpu 1")
    if fields.values.get("activation_checkpointing"):
        assumed.append("no activation checkpointing, which the model's code decides")
    return LaunchFile(
        path=path, engine="DeepSpeed", stack="eager", model=_required(path, model),
        options={"dtype": _half(path, said, assumed), "optimizer": _optimizer(optimizer.get("type"), assumed)},
        degrees={
            "zero": fields.stage("stage"), "micro_batch": fields.whole("train_micro_batch_size_per_gpu") or 1,
            "tp": fields.whole("autotp_size"), "pp": fields.whole("stages"),
            "recompute": "none" if (fields.text("activation_checkpoint_interval") or "0") == "0" else "full",
        },
        batch=fields.whole("train_batch_size"), accumulation=fields.whole("gradient_accumulation_steps") or 1,
        assumed=tuple(assumed), not_priced=fields.not_priced(),
        names={"zero": "zero_optimization.stage", "micro_batch": "train_micro_batch_size_per_gpu"},
    )  # fmt: skip


def _half(path: str, said: Mapping[str, Any], assumed: list[str]) -> str:
    sections = {name: section(path, said, name).get("enabled") for name in ("bf16", "fp16")}
    if True in sections.values():
        return "mixed" if sections["bf16"] is True else "mixed-float16"
    if "auto" in sections.values() or not any(name in said for name in sections):
        assumed.append("mixed precision in bfloat16")
        return "mixed"
    return "float32"


def _optimizer(kind: object, assumed: list[str]) -> str:
    text = str(kind or "adamw").lower()
    if text not in ADAMS:
        assumed.append(f"AdamW with float32 states instead of {kind}")
    elif kind is None:
        assumed.append("optimizer AdamW")
    return "sgd" if text == "sgd" else "adam" if text == "adam" else "adamw"


def _required(path: str, model: str | None) -> str:
    if model is None:
        raise InputError(f"{path}: the file names no model: expected --model, as in --model hf:Qwen/Qwen2.5-7B")
    return model


def read_accelerate(path: str, said: Mapping[str, Any], model: str | None) -> LaunchFile:
    """Read the file that `accelerate config` writes.

    Raises InputError if states are offloaded or settings are elsewhere.
    """
    fsdp, deepspeed = section(path, said, "fsdp_config"), section(path, said, "deepspeed_config")
    fields = Fields(path, {**said, **fsdp, **deepspeed})
    kind = (fields.text("distributed_type") or "NO").upper()
    if kind not in {"FSDP", "DEEPSPEED", "MULTI_GPU", "NO"}:
        raise InputError(f"{path}: distributed_type: expected FSDP, DEEPSPEED, MULTI_GPU or NO, found {kind}")
    if (other := fields.text("deepspeed_config_file")) is not None:
        raise InputError(f"{path}: deepspeed_config_file: expected its fields here; diagnose {other} --model NAME")
    _refuse_offloaded(fields)
    strategy = (fields.text("fsdp_sharding_strategy") or "full_shard").lower()
    sharded = SHARDING.get(strategy, 3) if _reshards(fields) else 2
    zero = sharded if kind == "FSDP" else fields.stage("zero_stage") if kind == "DEEPSPEED" else 0
    return LaunchFile(
        path=path, engine="Accelerate", stack="fsdp2" if kind == "FSDP" else "eager", model=_required(path, model),
        options={
            "dtype": PRECISIONS.get(str(said.get("mixed_precision", "no")).lower(), "mixed"), "optimizer": "adamw",
        },
        degrees={
            "zero": zero, "micro_batch": 1,
            "recompute": "full" if fields.switch("fsdp_activation_checkpointing") else "none",
        },
        accumulation=fields.whole("gradient_accumulation_steps") or 1, devices=fields.whole("num_processes"),
        assumed=("micro-batch 1 (the training script sets it)", "optimizer AdamW"), not_priced=fields.not_priced(),
        names={"zero": "fsdp_sharding_strategy (ZeRO)", "recompute": "fsdp_activation_checkpointing"},
        spelled={"recompute": CHECKPOINTED},
    )  # fmt: skip


def _refuse_offloaded(fields: Fields) -> None:
    for name in ("fsdp_offload_params", "offload_params", "offload_optimizer_device", "offload_param_device"):
        if (fields.text(name) or "false").lower() not in {"false", "none"}:
            raise InputError(f"{fields.path}: {name}: expected states on devices, found them offloaded")


def _reshards(fields: Fields) -> bool:
    text = fields.text("fsdp_reshard_after_forward", "reshard_after_forward") or "true"
    return text.lower() != "false"


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
    assumed: list[str] = []
    full = bool(said.get("fsdp") or fsdp)
    stage = next((number for number in (1, 2, 3) if f"zero{number}" in deepspeed), 0)
    sequence = fields.whole("sequence_len")
    assumed += [] if sequence else ["the model's own sequence"]
    halves = {name: fields.text(name) is not None and fields.switch(name) for name in ("bf16", "fp16", "fp8")}
    dtype = "mixed-float8" if halves["fp8"] else "mixed-float16" if halves["fp16"] else "mixed"
    if str(said.get("bf16")).lower() == "false" and not halves["fp16"]:
        dtype = "float32"
    options: dict[str, object] = {"dtype": dtype, "optimizer": _optimizer(said.get("optimizer"), assumed)}
    sizes = [fields.whole(name) for name in ("dp_shard_size", "dp_replicate_size", "tensor_parallel_size")]
    return LaunchFile(
        path=path, engine="Axolotl", stack="fsdp2" if full else "eager",
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
        assumed=tuple(assumed), not_priced=fields.not_priced(),
        names={
            "zero": "fsdp / deepspeed (ZeRO)", "micro_batch": "micro_batch_size", "recompute": "gradient_checkpointing",
            "tp": "tensor_parallel_size", "cp": "context_parallel_size",
        },
        spelled={"recompute": CHECKPOINTED},
    )  # fmt: skip


def _checkpoints(fields: Fields) -> bool:
    said = fields.text("gradient_checkpointing")
    checkpointed = said is not None and (said in {"unsloth", "offload"} or fields.switch("gradient_checkpointing"))
    return checkpointed or fields.switch("fsdp_activation_checkpointing", "activation_checkpointing")
