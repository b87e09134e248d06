"""Every format of files that the product reads: samples of it, how they are changed, and what reads them."""

from __future__ import annotations

import io
import json
import random
import sqlite3
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module, metadata
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors.numpy import save

import planner
from executor.checkpoint import Manifest, read_manifest, write_manifest
from executor.data.base import data_tensors, user_arrays
from executor.training import rank_programs
from executor.weights import Weights
from planner.graph.ir import Graph, entries_of
from planner.layout.region import whole
from planner.plans.plan_json import plan_from_file
from results.experiment import ROOT
from results.mutants.changes import Change, changed_bytes, changed_data, changed_json, changed_text, json_text
from results.mutants.watch import Mutant, Read
from results.scoreboard.__main__ import main as scoreboard
from topologies import full_text
from topologies.imports import import_machine

PRODUCT = ROOT / "examples" / "product.plan.json"
TOPOLOGY = "uniform-8"


@dataclass(frozen=True, slots=True)
class Format:
    """A format: the name of its file, samples, a change of one, and what reads it; `weight` is its share of mutants."""

    file: str
    samples: Sequence[bytes]
    change: Change
    readers: Sequence[Read]
    weight: int = 4

    def mutant(self, chance: random.Random) -> Mutant:
        """Draw a mutant."""
        return self.file, chance.choice(self.readers), self.change(chance.choice(self.samples), chance)


def command(name: str, *words: str) -> Read:
    """Return what runs a command of the project on a file, in place of the word FILE."""
    main = import_module(f"tensor_partitioner.commands.{name}").main
    return lambda path: main([word.replace("FILE", str(path)).replace("FOLDER", str(path.parent)) for word in words])


def _ran(read: Read, path: Path) -> None:
    """Read a file that is as it should be, silently; RuntimeError where that is refused."""
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        try:
            read(path)
        except SystemExit as ended:
            if ended.code:
                raise RuntimeError(f"{path}: expected status 0, found {ended.code}: {said.getvalue()}") from ended


def written(write: Read) -> bytes:
    """Return what a command, or something else, writes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "written.json")
        _ran(write, path)
        return path.read_bytes()


def changed_yaml(content: bytes, chance: random.Random) -> bytes:
    """Change YAML as data or, more seldom, as text."""
    if chance.random() < 0.3:
        return changed_text(content, chance)
    return yaml.safe_dump(changed_data(yaml.safe_load(content), chance)).encode(errors="surrogatepass")


def npy(array: np.ndarray[Any, Any], chance: random.Random | None = None) -> bytes:
    """Return a file of numpy.save, its header changed."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    content = file.getvalue()
    if chance is None:
        return content
    length = int.from_bytes(content[8:10], "little")
    header = changed_text(content[10 : 10 + length], chance)[: 2**16 - 2] + b"\n"
    return content[:8] + len(header).to_bytes(2, "little") + header + content[10 + length :]


def changed_npz(content: bytes, chance: random.Random) -> bytes:
    """Change an array's header, its name or its shape or, seldom, bytes of the archive."""
    if chance.random() < 0.2:
        return changed_bytes(content, chance)
    arrays = dict(np.load(io.BytesIO(content)))
    chosen, file = chance.choice(list(arrays)), io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            parts = {f"{name}.npy": npy(array)}
            if name == chosen:
                odd = chance.choice(
                    (array[:0], array.ravel(), array.astype(object), array.astype("U4"), array * np.nan)
                )
                parts = chance.choice(
                    (
                        {f"{name}.npy": npy(array, chance)},
                        {f"{name}.npy": npy(array, chance)},
                        {f"../{name}.npy": npy(array)},
                        {name: b"no array"},
                        {f"{name}.npy": npy(odd) if odd.dtype != object else b"\x93NUMPY\x01\x00"},
                    )
                )
            for part, data in parts.items():
                archive.writestr(part, data)
    return file.getvalue()


def changed_safetensors(content: bytes, chance: random.Random) -> bytes:
    """Change the header as data or, seldom, bytes."""
    if chance.random() < 0.3:
        return changed_bytes(content, chance)
    length = int.from_bytes(content[:8], "little")
    header = json_text(changed_data(json.loads(content[8 : 8 + length]), chance))
    return len(header).to_bytes(8, "little") + header + content[8 + length :]


def _npz(arrays: Mapping[str, np.ndarray[Any, Any]]) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]  # names are those of the arrays
    return file.getvalue()


def _nsight(path: Path) -> None:
    """Write an export of Nsight Systems with two kernels."""
    columns = "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL)")
    kernels = f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({columns}, demangledName INTEGER, shortName INTEGER)"
    database.execute(kernels)
    for number, name in enumerate(("void cutlass::Kernel2<gemm>", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL")):
        database.execute("INSERT INTO StringIds VALUES (?, ?)", (number, name))
        row = (100 * number, 100 * number + 90, 0, 7, number, number, number)
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    database.commit()
    database.close()


def _profile() -> bytes:
    """Return a trace as PyTorch's profiler writes them."""
    rows = (
        ("ProfilerStep#1", "user_annotation", 0, 300), ("aten::linear", "cpu_op", 10, 30),
        ("aten::addmm", "cpu_op", 14, 20), ("aten::gelu", "cpu_op", 70, 6),
        ("Optimizer.step#SGD.step", "user_annotation", 150, 20), ("gloo:all_reduce", "user_annotation", 160, 30),
        ("ProfilerStep#2", "user_annotation", 300, 10),
    )  # fmt: skip
    events = [
        {"ph": "X", "name": name, "cat": kind, "pid": 7, "tid": 1, "ts": begin, "dur": lasts, "args": {"device": 0}}
        for name, kind, begin, lasts in rows
    ]
    return json.dumps({"traceEvents": events}).encode()


SCRIPT = b"""#!/bin/bash
GPUS=8
NODES=${NODES:-2}
WORLD=$(($GPUS*$NODES))
ARGS=(
    --num-layers 16 --hidden-size 2048 --ffn-hidden-size 5632 --num-attention-heads 32 --seq-length 4096
    --max-position-embeddings 4096 --position-embedding-type rope --swiglu --tokenizer-type Llama2Tokenizer
)
torchrun --nproc_per_node $GPUS --nnodes=$NODES pretrain_gpt.py ${ARGS[@]} --tensor-model-parallel-size 2 \\
    --pipeline-model-parallel-size 4 --use-distributed-optimizer --micro-batch-size 2 --global-batch-size 64 --bf16
"""

TOML = b"""[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 4096
[parallelism]
tensor_parallel_degree = 2
[activation_checkpoint]
mode = "full"
"""

DEEPSPEED = {
    "train_batch_size": 64, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8,
    "zero_optimization": {"stage": 3}, "bf16": {"enabled": True}, "optimizer": {"type": "AdamW", "params": {"lr": 1}},
}  # fmt: skip

ACCELERATE = b"""distributed_type: FSDP
mixed_precision: bf16
num_machines: 1
num_processes: 8
fsdp_config:
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_activation_checkpointing: true
"""

LANGUAGE_MODEL = {
    "model_type": "qwen2", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 128, "architectures": ["Qwen2ForCausalLM"],
}  # fmt: skip

RUNS = b"""model,GPU,GPUs,tp,pp,micro batch,global batch,sequence,recompute,framework,step time (s),peak memory (GiB)
llama-3.1-8b,H100 SXM,8,2,1,1,64,8192,none,megatron,7.4,
llama-3.1-8b,H100 SXM,8,4,1,1,64,8192,none,megatron,8.3,62.1
llama-3.1-8b,H100 SXM,8,1,1,4,64,8192,none,megatron,OOM,
llama-3.1-8b,H100 SXM,16,2,2,1,128,8192,selective,megatron,8.1,-
"""

PINS = b"pins:\n  l0.mlp.up.w: S0\nforbids:\n  l1.mlp.up.w: R\n"
NVIDIA_SMI = b"""        GPU0    GPU1    GPU2    GPU3    CPU Affinity
GPU0     X      NV12    NV12    NV12    0-31
GPU1    NV12     X      NV12    NV12    0-31
GPU2    NV12    NV12     X      NV12    32-63
GPU3    NV12    NV12    NV12     X      32-63
"""
NCCL = b"""<system version="1"><cpu numaid="0" affinity="0000ffff" arch="x86_64" vendor="AuthenticAMD">
<pci busid="0000:01:00.0" class="0x060400" link_speed="16 GT/s" link_width="16">
<pci busid="0000:02:00.0" class="0x030200" link_speed="16 GT/s" link_width="16">
<gpu dev="0" sm="80" rank="0" gdr="1"><nvlink target="0000:03:00.0" count="12" tclass="0x030200"/></gpu></pci>
<pci busid="0000:03:00.0" class="0x030200" link_speed="16 GT/s" link_width="16">
<gpu dev="1" sm="80" rank="1" gdr="1"><nvlink target="0000:02:00.0" count="12" tclass="0x030200"/></gpu></pci>
</pci></cpu></system>"""
HWLOC = b"""<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0"><object type="Machine" gp_index="1"><object type="Package" os_index="0" gp_index="2">
<object type="Bridge" gp_index="10" bridge_type="0-1">
<object type="PCIDev" gp_index="12" pci_type="0302 [10de:15f9] [10de:116b] a1" pci_link_speed="15.753846">
<object type="OSDev" gp_index="13" name="cuda0" osdev_type="5"/></object>
<object type="PCIDev" gp_index="14" pci_type="0302 [10de:15f9] [10de:116b] a1" pci_link_speed="7.876923">
<object type="OSDev" gp_index="15" name="nvml1" osdev_type="5"/></object></object></object></object></topology>
"""


def _with_weights(graph: Graph, path: Path) -> None:
    weights = Weights.of(path, graph)
    for name, entry in entries_of(graph).items():
        if entry.tensor is not None:
            tensor = graph.tensors[entry.tensor]
            weights.tile(tensor, whole(tensor.shape))
        else:
            weights.content(name)


def _scored(path: Path) -> None:
    raise SystemExit(scoreboard([str(path)]))


def _manifest(path: Path) -> None:
    write_manifest(path, Manifest(3, "a" * 64, 0, "random", "constant", ["b" * 64]))


def _beside(report: bytes, read: Read) -> Read:
    """Return what reads a file beside a good report, which it knows by the word REPORT."""

    def reader(path: Path) -> None:
        path.with_name("report.json").write_bytes(report)
        read(path)

    return reader


def _lowered(path: Path) -> None:
    rank_programs(plan_from_file(path, path.read_bytes()), 0)


def formats() -> dict[str, Format]:
    """Return all formats; samples are what the project's own commands write, where they write the format."""
    graph = planner.model("mlp-2-16", batch=8)
    numbers = np.random.default_rng(0)
    inputs = {t.name: numbers.integers(0, 2, (16, *t.shape[1:])).astype(t.dtype) for t in data_tensors(graph)}
    entries = {name: numbers.random(entry.shape).astype(entry.dtype) for name, entry in entries_of(graph).items()}
    plans = [
        PRODUCT.read_bytes(),
        written(command("plan", "mlp-2-16", "--batch", "8", "--workers", "4", "-o", "FILE")),
    ]
    graphs = [json.dumps(json.loads(plan)["graph"]).encode() for plan in plans]
    report = written(command("simulate", str(PRODUCT), "--topo", TOPOLOGY, "--tasks", "--json", "FILE"))
    asked = ("--batch", "8", "--budget", "1s", "--json", "FILE")
    decision = written(command("decide", "transformer-2-64", "--topo", "hgx-h100", "--stack", "megatron", *asked))
    page = command("report", "FILE", "-o", "FOLDER/page.html")
    profiled = _beside(report, command("compare", "FOLDER/report.json", "--profile", "FILE"))
    exported = _beside(report, command("compare", "FOLDER/report.json", "--profile", "FILE", "--steps", "1"))
    pinned = command("plan", "transformer-2-64", "--batch", "8", "--workers", "4", "--pins", "FILE")
    launched = command("diagnose", "FILE", "--topo", "hgx-h100", "--model", "llama-3.1-8b")
    imported = partial(import_machine, device="a100-sxm4-40gb")
    data, weights = partial(user_arrays, graph=graph, seed=0), partial(_with_weights, graph)
    return {
        "plan": Format(
            "plan.json",
            plans,
            changed_json,
            (
                command("plan", "FILE", "--explain"),
                command("simulate", "FILE", "--topo", TOPOLOGY),
                command("export", "FILE", "--to", "dtensor"),
                _lowered,
            ),
            12,
        ),
        "graph": Format("graph.json", graphs, changed_json, (command("plan", "FILE", "--ways", "2,2"),), 12),
        "topology": Format(
            "machine.yaml",
            [full_text(TOPOLOGY).encode(), full_text("dgx-1-v100").encode()],
            changed_yaml,
            (command("topo", "check", "FILE"), command("simulate", str(PRODUCT), "--topo", "FILE")),
            6,
        ),
        "report": Format(
            "report.json",
            [report],
            changed_json,
            (command("compare", "FILE", "FILE"), command("report", str(PRODUCT), "FILE", "-o", "FOLDER/page.html")),
        ),
        "decision": Format(
            "decision.json", [decision], changed_json, (command("export", "FILE", "--to", "megatron"), page)
        ),
        "profile": Format("trace.json", [_profile()], changed_json, (profiled,)),
        "Nsight export": Format("trace.sqlite", [written(_nsight)], changed_bytes, (exported,)),
        "pins": Format("pins.yaml", [PINS], changed_yaml, (pinned,), 1),
        "language model": Format(
            "config.json",
            [json.dumps(LANGUAGE_MODEL).encode()],
            changed_json,
            (command("plan", "FILE", "--batch", "8", "--sequence", "32", "--workers", "2"),),
            1,
        ),
        "Megatron script": Format("run.sh", [SCRIPT], changed_text, (launched,), 1),
        "torchtitan": Format("run.toml", [TOML], changed_text, (launched,), 1),
        "DeepSpeed": Format("run.json", [json.dumps(DEEPSPEED).encode()], changed_json, (launched,), 1),
        "Accelerate": Format("run.yaml", [ACCELERATE], changed_yaml, (launched,), 1),
        "scoreboard": Format("runs.csv", [RUNS], changed_text, (_scored,)),
        "nvidia-smi": Format("topo.txt", [NVIDIA_SMI], changed_text, (imported,)),
        "NCCL": Format("nccl.xml", [NCCL], changed_text, (imported,)),
        **({"hwloc": Format("hwloc.xml", [HWLOC], changed_text, (imported,))} if _is_installed("hwloc") else {}),
        "data": Format("data.npz", [_npz(inputs)], changed_npz, (data,)),
        "weights": Format("weights.npz", [_npz(entries)], changed_npz, (weights,)),
        "safetensors": Format("weights.safetensors", [save(entries)], changed_safetensors, (weights,)),
        "manifest": Format("manifest.json", [written(_manifest)], changed_json, (read_manifest,)),
    }


def _is_installed(extra: str) -> bool:
    return any(file.metadata["Name"] == f"tensor-partitioner-{extra}" for file in metadata.distributions())


@cache
def known_formats() -> Mapping[str, Format]:
    """Return all formats, once each reader has read every sample as it is; what they need is imported then."""
    known = formats()
    with tempfile.TemporaryDirectory() as folder:
        for form in known.values():
            path = Path(folder, form.file)
            for sample, read in product(form.samples, form.readers):
                path.write_bytes(sample)
                _ran(read, path)
    return known


def shares(count: int) -> dict[str, int]:
    """Return how many of all mutants are of each format, by weight."""
    known = known_formats()
    each = count / sum(form.weight for form in known.values())
    return {name: max(1, round(each * form.weight)) for name, form in known.items()}


def mutant(name: str, seed: int, number: int) -> Mutant:
    """Draw a mutant of a format, which follows from seed and number alone."""
    return known_formats()[name].mutant(random.Random(f"{name} {seed} {number}"))
