"""torchtitan launch files: a TOML configuration, with the names of versions up to 0.2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.errors import InputError
from planner.parallel import RECOMPUTE
from tensor_partitioner.display import nearest
from tensor_partitioner.launch.launch import Fields, LaunchFile

MODELS = {
    "llama2": {"7b": "llama-2-7b", "13b": "hf:meta-llama/Llama-2-13b-hf", "70b": "llama-2-70b"},
    "llama3": {"8b": "llama-3.1-8b", "70b": "llama-3.1-70b", "405b": "llama-3.1-405b"},
    "qwen3": {size: f"hf:Qwen/Qwen3-{size.upper()}" for size in ("0.6b", "1.7b", "4b", "8b", "14b", "32b", "30b-a3b")},
}
"""torchtitan's models, by name and flavor, and our names for them."""

DEGREE = "{}_parallel_degree"
NAMES = {
    **{axis: DEGREE.format(word) for axis, word in (("tp", "tensor"), ("pp", "pipeline"), ("cp", "context"))},
    "zero": "fsdp_reshard_after_forward", "recompute": "activation_checkpoint.mode",
    "micro_batch": "local_batch_size", "schedule": "pipeline_parallel_schedule",
}  # fmt: skip
"""torchtitan's names for the words of named parallelism."""

USUAL_BATCH, USUAL_SEQUENCE = 8, 2048
"""Defaults of torchtitan's JobConfig."""

SPELLED = {
    "recompute": {"none": "none"}, "zero": {"2": "never", "3": "always"},
    "schedule": {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved:2": "Interleaved1F1B"},
}  # fmt: skip
"""torchtitan's spelling of values of named parallelism."""

SCHEDULES = {"1f1b": "1f1b", "gpipe": "gpipe", "interleaved1f1b": "interleaved:2"}


def read_toml(path: str, nested: Mapping[str, Any], model: str | None) -> LaunchFile:
    """Read a configuration. Raises InputError for an unknown model or schedule."""
    sections = {name: section for name, section in nested.items() if isinstance(section, dict)}
    fields = Fields(
        path, {f"{of}.{name}": value for of, section in sections.items() for name, value in section.items()}
    )
    if fields.switch("training.enable_cpu_offload"):
        raise InputError(f"{path}: training.enable_cpu_offload: expected states on devices, found them offloaded")
    assumed: list[str] = []
    pp, cp, tp = (_degree(fields, axis) for axis in ("pipeline", "context", "tensor"))
    zero, devices = _sharded(fields, pp, pp * cp * tp)
    batch, micro = _at_once(fields, pp, assumed)
    sequence = fields.whole("training.seq_len") or USUAL_SEQUENCE
    eight = fields.switch("float8.enable_float8_linear") or "float8" in str(fields.values.get("model.converters"))
    single = (fields.text("training.mixed_precision_param") or "bfloat16") == "float32"
    half = fields.text("training.dtype") == "bfloat16"
    dtype = "mixed-float8" if eight else "float32" if single else "bfloat16" if half else "mixed"
    name = (fields.text("optimizer.name") or "AdamW").lower()
    assumed += [] if fields.text("optimizer.name") else ["optimizer AdamW"]
    if name not in {"adam", "adamw"}:
        assumed.append(f"AdamW instead of {name}")
    if "mx" in str(fields.values.get("model.converters")):
        assumed.append("bfloat16 products instead of MX formats")
    layer_option = fields.text("activation_checkpoint.selective_ac_option")
    if layer_option not in {None, "op"}:
        assumed.append(f"selective_ac_option op instead of {layer_option}")
    return LaunchFile(
        path=path,
        engine="torchtitan",
        stack="fsdp2-compiled" if fields.switch("training.compile", "compile.enable") else "fsdp2",
        model=_model(fields) if model is None else model,
        options={"sequence": sequence, "dtype": dtype, "optimizer": name if name == "adam" else "adamw"},
        degrees={
            "pp": pp, "tp": tp, "cp": cp, "ep": _degree(fields, "expert"), "sp": tp > 1,
            "zero": zero,
            "recompute": _recomputed(fields, assumed), "micro_batch": micro,
            "schedule": _schedule(fields, pp),
        },
        batch=batch,
        accumulation=1 if pp == 1 else _local(fields) // micro,
        devices=devices,
        assumed=tuple(assumed),
        not_priced=fields.not_priced(),
        names=NAMES if pp == 1 else NAMES | {"micro_batch": "pipeline_parallel_microbatch_size"},
        spelled=SPELLED,
    )  # fmt: skip


def _sharded(fields: Fields, pp: int, others: int) -> tuple[int, int | None]:
    """Return the ZeRO stage, and the number of devices if it is set.

    Raises InputError for replicas of shards (HSDP).
    """
    shard = _either(fields, "data_parallel_shard_degree")
    replicas = fields.whole(*(f"{of}.data_parallel_replicate_degree" for of in ("parallelism", "training"))) or 1
    whole = shard == "1"
    if replicas > 1 and not whole:
        raise InputError(f"{fields.path}: data_parallel_replicate_degree: expected 1 with sharding, found {replicas}")
    resharded = (fields.text("parallelism.fsdp_reshard_after_forward") or "default").lower()
    stage = 2 if resharded == "never" or (resharded == "default" and pp > 1) else 3
    shards = int(shard) if shard.isdecimal() else None
    devices = None if shards is None else shards * replicas * others
    return 0 if whole and _degree(fields, "context") == 1 else stage, devices


def _either(fields: Fields, name: str) -> str:
    return fields.text(*(f"{of}.{name}" for of in ("parallelism", "training", "experimental"))) or "-1"


def _degree(fields: Fields, axis: str) -> int:
    names = [DEGREE.format(axis), *(["sequence_parallel_degree"] if axis == "tensor" else [])]
    return fields.whole(*(f"{of}.{name}" for name in names for of in ("parallelism", "training", "experimental"))) or 1


def _local(fields: Fields) -> int:
    return fields.whole("training.local_batch_size", "training.batch_size") or USUAL_BATCH


def _at_once(fields: Fields, pp: int, assumed: list[str]) -> tuple[int | None, int]:
    """Return the global batch, None if it is not set, and the samples of a micro-batch."""
    if fields.whole("training.local_batch_size", "training.batch_size") is None:
        assumed.append(f"local_batch_size {USUAL_BATCH}")
    total = fields.text("training.global_batch_size")
    batch = None if total in {None, "-1"} else fields.whole("training.global_batch_size")
    said = fields.whole(
        "parallelism.pipeline_parallel_microbatch_size", "experimental.pipeline_parallel_microbatch_size"
    )
    return batch, (said or 1) if pp > 1 else _local(fields)


def _model(fields: Fields) -> str:
    name, flavor = (fields.text("model.name") or "llama3").lower(), (fields.text("model.flavor") or "").lower()
    flavors = MODELS.get(name)
    if flavors is None or flavor not in flavors:
        known = [f"{of} {size.upper()}" for of, sizes in MODELS.items() for size in sizes]
        asked = f"{name} {flavor.upper()}".strip()
        raise InputError(
            f"{fields.path}: model: expected one of {', '.join(known)}, found {asked}{nearest(asked, known)}; --model "
            "names another"
        )
    return flavors[flavor]


def _recomputed(fields: Fields, assumed: list[str]) -> str:
    mode = str(fields.values.get("activation_checkpoint.mode", "")).lower()
    if mode not in RECOMPUTE:
        mode = "selective"
        assumed.append(f"activation checkpointing {mode}")
    return mode


def _schedule(fields: Fields, pp: int) -> str:
    said = fields.text("parallelism.pipeline_parallel_schedule", "experimental.pipeline_parallel_schedule") or "1F1B"
    if pp > 1 and said.lower() not in SCHEDULES:
        raise InputError(
            f"{fields.path}: pipeline_parallel_schedule: expected 1F1B, GPipe or Interleaved1F1B, found {said}"
        )
    return SCHEDULES.get(said.lower(), "1f1b")
