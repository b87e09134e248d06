"""DeepSpeed's JSON, and Accelerate's and Axolotl's YAML: how a model that is named beside, or in it, is trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.errors import InputError
from tensor_partitioner.launch.launch import Fields, LaunchFile

ADAPTERS = ("lora", "qlora")
ZERO = {"full_shard": 3, "hybrid_shard": 3, "shard_grad_op": 2, "no_shard": 0}


def read_deepspeed(path: str, said: Mapping[str, Any], model: str | None) -> LaunchFile:
    """Read DeepSpeed's configuration; an InputError where states are offloaded, or no model is named."""
    zero = said.get("zero_optimization") or {}
    for name in ("offload_optimizer", "offload_param"):
        if (zero.get(name) or {}).get("device", "none") != "none":
            raise InputError(f"{path}: zero_optimization.{name}: expected states on devices, found them offloaded")
    fields = Fields(path, {**said, "stage": zero.get("stage")})
    assumed = []
    if fields.whole("train_micro_batch_size_per_gpu", "train_batch_size") is None:
        assumed.append("train_micro_batch_size_per_gpu 1")
    half = next((of for name, of in (("bf16", "mixed"), ("fp16", "mixed-float16")) if _enabled(said.get(name))), None)
    if half is None:
        assumed.append("mixed precision, as neither bf16 nor fp16 is enabled for certain")
    pipeline = said.get("pipeline") or {}
    checkpointed = said.get("activation_checkpointing") or pipeline.get("activation_checkpoint_interval")
    kind = str((said.get("optimizer") or {}).get("type", "AdamW")).lower()
    return LaunchFile(
        path=path, engine="DeepSpeed", stack="eager", model=_required(path, model),
        options={"dtype": half or "mixed", "optimizer": kind if kind in {"adam", "adamw", "sgd"} else "adamw"},
        degrees={
            "zero": fields.whole("stage") if str(zero.get("stage", 0)) != "0" else 0,
            "micro_batch": fields.whole("train_micro_batch_size_per_gpu") or 1,
            "tp": (said.get("tensor_parallel") or {}).get("autotp_size"),
            "pp": pipeline.get("stages") if str(pipeline.get("stages")) != "auto" else None,
            "recompute": "full" if checkpointed else "none",
        },
        batch=fields.whole("train_batch_size"), accumulation=fields.whole("gradient_accumulation_steps") or 1,
        assumed=tuple(assumed),
    )  # fmt: skip


def _enabled(section: object) -> bool:
    return isinstance(section, dict) and section.get("enabled") is True


def _required(path: str, model: str | None) -> str:
    if model is None:
        raise InputError(f"{path}: expected --model beside a file that names none, as in --model hf:Qwen/Qwen2.5-7B")
    return model


def read_accelerate(path: str, said: Mapping[str, Any], model: str | None) -> LaunchFile:
    """Read the configuration that `accelerate config` writes."""
    fsdp, deepspeed = said.get("fsdp_config") or {}, said.get("deepspeed_config") or {}
    fields = Fields(path, {**deepspeed, **said})
    strategy = str(fsdp.get("fsdp_sharding_strategy", "full_shard")).lower()
    kind = str(said.get("distributed_type", "NO")).upper()
    zero = ZERO.get(strategy, 3) if kind == "FSDP" else int(fields.text("zero_stage") or 0) if deepspeed else 0
    dtype = {"bf16": "mixed", "fp16": "mixed-float16", "no": "float32"}.get(
        str(said.get("mixed_precision", "no")), "mixed"
    )
    return LaunchFile(
        path=path, engine="Accelerate", stack="fsdp2" if kind == "FSDP" else "eager", model=_required(path, model),
        options={"dtype": dtype, "optimizer": "adamw"},
        degrees={
            "zero": zero, "micro_batch": 1,
            "recompute": "full" if fsdp.get("fsdp_activation_checkpointing") else "none",
        },
        accumulation=fields.whole("gradient_accumulation_steps") or 1, devices=fields.whole("num_processes"),
        assumed=("micro-batch 1, which the script says",),
    )  # fmt: skip


def read_axolotl(path: str, said: Mapping[str, Any], model: str | None) -> LaunchFile:
    """Read Axolotl's configuration of a full fine-tuning; an InputError for adapters."""
    fields = Fields(path, said)
    if fields.text("adapter") in ADAPTERS:
        raise InputError(f"{path}: adapter: expected a training of all weights, found {said['adapter']}")
    deepspeed = fields.text("deepspeed") or ""
    stage = next((number for number in (1, 2, 3) if f"zero{number}" in deepspeed.replace("_", "").lower()), 0)
    full = "full_shard" in str(said.get("fsdp", "")) or said.get("fsdp_version") == 2
    options: dict[str, object] = {
        "dtype": "mixed-float16" if fields.switch("fp16") else "mixed",
        "optimizer": "sgd" if fields.text("optimizer") == "sgd" else "adamw",
    }
    sequence = fields.whole("sequence_len")
    return LaunchFile(
        path=path, engine="Axolotl", stack="fsdp2" if full else "eager",
        model=model or f"hf:{said['base_model']}", options=options | ({"sequence": sequence} if sequence else {}),
        degrees={
            "zero": 3 if full else stage, "micro_batch": fields.whole("micro_batch_size") or 1,
            "recompute": "full" if fields.switch("gradient_checkpointing") else "none",
            "cp": fields.whole("sequence_parallel_degree", "context_parallel_size"),
            "tp": fields.whole("tensor_parallel_size"),
        },
        accumulation=fields.whole("gradient_accumulation_steps") or 1,
        assumed=() if sequence else ("the model's own sequence",),
    )  # fmt: skip
