"""Calculon (github.com/calculon-ai/calculon) on the same rows, where it is on the path with its `systems` beside it.

It needs pandas and psutil.
"""

from __future__ import annotations

import json
import logging
from functools import cache
from pathlib import Path
from typing import Any

from planner.parallel import Parallel
from results.scoreboard.cells import SetError
from results.scoreboard.runs import Run

try:
    import calculon
    from calculon.llm import Llm
except ModuleNotFoundError as error:
    if error.name != "calculon":  # it is there, what it needs is not
        raise
    calculon = None

SYSTEMS = {"a100-sxm4-80gb": "a100_80g", "h100-sxm5-80gb": "h100_80g_nvl8"}
"""Types of devices that it comes with a description of."""

DATATYPES = {"mixed": "float16", "mixed-float16": "float16", "mixed-float8": "float8"}
"""What it calls a precision."""

RECOMPUTE = {"none": "none", "selective": "attn_only", "full": "full"}
UNLIMITED_GIB = 1 << 30


def version() -> str | None:
    """Return Calculon's version, None where it cannot be used."""
    if calculon is None or not _folder().is_dir():
        return None
    return str(calculon.__version__)


def _folder() -> Path:
    return Path(calculon.__file__).parents[1] / "systems"


@cache
def _system(device: str) -> Any:
    """Return its description of a device, with memory that nothing exceeds: times are asked for, not verdicts."""
    if device not in SYSTEMS:
        raise SetError(f"Calculon describes no {device}")
    config = json.loads((_folder() / f"{SYSTEMS[device]}.json").read_text())
    config["mem1"]["GiB"] = UNLIMITED_GIB
    return calculon.System(config)


def seconds(run: Run, way: Parallel | None = None) -> float:
    """Return its seconds of a step, of several ways the least; SetError for a run that it cannot express."""
    return min(_seconds(run, candidate) for candidate in ((way,) if way else run.ways))


def _seconds(run: Run, way: Parallel) -> float:
    size = run.size
    if size is None or size.architecture == "llama" or size.kv_heads != size.heads or size.experts > 1:
        raise SetError("Calculon has GPTs alone")
    if way.cp > 1 or way.zero > 1 or way.schedule.partition(":")[0] not in {"1f1b", "interleaved"}:
        raise SetError("Calculon has no context parallelism, ZeRO beyond 1, nor schedules but 1F1B and interleaved")
    datatype = DATATYPES.get(str(dict(run.options)["dtype"]))
    if datatype is None:
        raise SetError("Calculon describes devices in 16 and 8 bits alone")
    system = _system(run.machine.built.devices[0].spec.name)
    application = Llm.Application(
        {
            "hidden": size.hidden, "feedforward": size.ffn, "seq_size": size.sequence, "attn_heads": size.heads,
            "attn_size": size.head_width, "num_blocks": size.layers,
        }
    )  # fmt: skip
    try:
        model = Llm(application, logging.getLogger("calculon"))
        model.compile(system, Llm.Execution.from_json(_execution(run, way, system, datatype)))
        model.run(system)
    except (Llm.Error, AssertionError) as error:
        raise SetError(f"Calculon refuses: {error}") from error
    return float(model.get_stats_json(False)["total_time"])


def _execution(run: Run, way: Parallel, system: Any, datatype: str) -> dict[str, Any]:
    """Return how it runs; an axis of parallelism is within the first network as far as that reaches, tensor first."""
    node = system.networks[0].size
    tiers = [int(reach > node) for reach in (way.tp, way.tp * way.dp, run.devices)]
    return {
        "num_procs": run.devices, "tensor_par": way.tp, "pipeline_par": way.pp, "data_par": way.dp,
        "tensor_par_net": tiers[0], "pipeline_par_net": tiers[2], "data_par_net": tiers[1],
        "batch_size": run.batch, "microbatch_size": way.micro_batch or run.batch // way.dp, "datatype": datatype,
        "fused_activation": False, "attention_type": "multihead", "activation_recompute": RECOMPUTE[way.recompute],
        "pipeline_interleaving": way.chunks, "optimizer_sharding": way.zero == 1,
        "tensor_par_comm_type": "rs_ag" if way.sp else "ar", "tensor_par_overlap": "none",
        "seq_par_ag_redo": way.sp and way.recompute != "full", "data_par_overlap": False, "weight_offload": False,
        "activations_offload": False, "optimizer_offload": False, "training": True,
    }  # fmt: skip
