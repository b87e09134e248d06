"""DeepSpeed: its JSON configuration, with the names that DeepSpeed 0.17 and later read."""

from __future__ import annotations

from typing import Any

import msgspec

from planner.export.setup import Launch, Setup, first

OPTIMIZERS = {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD", "momentum": "SGD"}


def limits(setup: Setup) -> str:
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


def notes(setup: Setup) -> tuple[str, ...]:
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


def write(setup: Setup, name: str) -> str:
    """Return the content of the JSON file."""
    del name
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
        result["pipeline"] = {
            "stages": parallel.pp,
            "activation_checkpoint_interval": 0 if parallel.recompute == "none" else 1,
        }
    return result


DEEPSPEED = Launch("DeepSpeed", limits, notes, write, "eager", ("1f1b",), OPTIMIZERS)
