"""Launch files of Megatron-LM (a shell script, or the arguments as it prints them) and of NeMo (YAML)."""

from __future__ import annotations

import operator
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import reduce
from itertools import pairwise
from typing import Any

from planner.errors import GraphError, InputError
from planner.models.huggingface import PREFIX, size_of
from simulator.projection.stack import stack_named
from tensor_partitioner.launch.launch import Fields, LaunchFile, Value
from tensor_partitioner.launch.shell import commands_run

PRINTED = re.compile(r"^.*?\b(\w+) \.{3,} ?(.*)$", re.MULTILINE)
"""An argument as Megatron-LM prints it on start."""

NAMES = {
    "tp": "--tensor-model-parallel-size", "pp": "--pipeline-model-parallel-size", "cp": "--context-parallel-size",
    "sp": "--sequence-parallel", "zero": "ZeRO (--use-distributed-optimizer, --use-megatron-fsdp)",
    "recompute": "--recompute-granularity", "micro_batch": "--micro-batch-size",
    "schedule": "--num-virtual-stages-per-pipeline-rank",
}  # fmt: skip
"""Megatron-LM's names for the words of named parallelism."""

NEMO_NAMES = {
    "tp": "tensor_model_parallel_size", "pp": "pipeline_model_parallel_size", "cp": "context_parallel_size",
    "sp": "sequence_parallel", "zero": "optim.name (distributed_fused_adam: ZeRO-1)", "micro_batch": "micro_batch_size",
    "recompute": "activations_checkpoint_granularity", "schedule": "virtual_pipeline_model_parallel_size",
}  # fmt: skip

OTHERS = re.compile(r"pretrain_(?:bert|t5|ict|vision\w*|mamba|vlm|multimodal)\.py")
OTHER_MODELS = ("enable-gpt-oss", "is-hybrid-model", "hybrid-override-pattern", "optimizer-cpu-offload")
"""Arguments that select an unsupported model, or keep states off the device. They are refused."""

MOST_LAYERS = 10_000
SPELLED = {
    "recompute": {"none": "(without it)", "selective": "selective", "full": "full"},
    "sp": {"True": "(set)", "False": "(without it)"},
    "schedule": {"1f1b": "1", **{f"interleaved:{count}": str(count) for count in range(2, 65)}},
}  # fmt: skip
"""Megatron-LM's spelling of values of named parallelism."""

TOKENIZERS = {"gpt2bpetokenizer": 50257, "llama2tokenizer": 32000, "llama3tokenizer": 128256}
"""Vocabulary size of tokenizers that have only one."""

USUAL_WORDS, USUAL_MULTIPLE = 50257, 128
"""GPT-2's vocabulary size, and the multiple (per tensor parallel worker) to which Megatron-LM pads vocabularies."""

NEMO = {
    "encoder_seq_length": "seq-length", "devices": "nproc-per-node", "num_nodes": "nnodes",
    "virtual_pipeline_model_parallel_size": "num-virtual-stages-per-pipeline-rank",
    "activations_checkpoint_granularity": "recompute-granularity", "num_moe_experts": "num-experts",
    "share_embeddings_and_output_weights": "share-embeddings-and-output-weights",
    "ub_tp_comm_overlap": "tp-comm-overlap", "mixed_precision": "precision",
}  # fmt: skip
"""NeMo's names for Megatron-LM's arguments, where they differ."""


RENAMED = {("optim", "name"): "optim_name", ("tokenizer", "type"): "tokenizer_model"}
"""Names in sections that mean something else in others."""

OTHER_SECTIONS = {"decoder", "vision", "mm-cfg", "patch-dim", "bert-binary-head"}
"""Fields of models that are no GPT: T5, CLIP, NeVA, ViT, BERT."""

INTERPOLATION = re.compile(r"\$\{(?:(\w+):)?([^${}:]*)\}")
FUNCTIONS = {"multiply": operator.mul, "divide_floor": operator.floordiv}
MOST_NESTED = 8
"""How often interpolations within interpolations are resolved."""

NO_VALUE = re.compile(r"-|[|&<>)]|\d>|\$[@*]|\$\{\w+\[[@*]")
"""What follows a flag without a value: another flag, an operator of the shell, or an array."""

HYDRA = re.compile(r"(?<!\S)\+*((?:trainer|model)(?:\.\w+)+)=(\S+)")
"""A NeMo setting on a command line."""


def is_script(text: str) -> bool:
    """Return whether a text has arguments of Megatron-LM or NeMo."""
    return any(name in text for name in ("--num-layers", "--hidden-size", "model.num_layers=", "num_layers ..."))


def read_script(path: str, text: str) -> LaunchFile:
    """Read a shell script, or what Megatron-LM printed. Raises InputError if a required value is missing."""
    if "model.num_layers=" in text:
        settings = HYDRA.findall("\n".join(commands_run(text)))
        named = [(name.replace("optim.name", "optim.optim_name").rpartition(".")[2], of) for name, of in settings]
        return read_nemo(path, {name: of.strip("\"'") for name, of in named})
    if other := OTHERS.search(text):
        raise InputError(f"{path}: expected the training of a GPT, found {other[0]}")
    printed = {name.replace("_", "-"): value.strip() for name, value in PRINTED.findall(text)}
    return launch_of(Fields(path, printed if "num-layers" in printed else dict(_flags(path, text))))


def read_nemo(path: str, nested: Mapping[str, object]) -> LaunchFile:
    """Read a YAML file of NeMo or Megatron Bridge, or NeMo's settings from a command line."""
    flat = {NEMO.get(name, name.replace("_", "-")): _said(value) for name, value in _flat(nested, nested)}
    if not {"num-layers", "hidden-size"} <= flat.keys():
        raise InputError(
            f"{path}: expected a YAML of NeMo, Accelerate or Axolotl, found neither num_layers nor base_model"
        )
    if other := OTHER_SECTIONS.intersection(flat):
        raise InputError(f"{path}: expected the training of a GPT, found {min(other)}")
    flat["swiglu"] = flat.get("gated-linear-unit", str(flat.get("activation", "")).endswith(("glu", "silu")))
    flat.setdefault("use-distributed-optimizer", "distributed" in str(flat.get("optim-name", "")))
    flat |= {"untie-embeddings-and-output-weights": not flat.get("share-embeddings-and-output-weights", True)}
    for width in ("bf16", "fp16"):
        flat |= {width: width[2:] in str(flat.get("precision", "bf16")) and width[:2] in str(flat.get("precision", ""))}
    return launch_of(Fields(path, flat), engine="NeMo", stack="nemo")


def _said(value: Value) -> Value:
    """Return a boolean for the words "true" and "false", and any other value unchanged."""
    return {"true": True, "false": False}.get(str(value).lower(), value)


def _flat(nested: Mapping[str, Any], root: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, Value]]:
    """Yield the values of all sections with their names, and the names of the sections."""
    for name, value in nested.items():
        if isinstance(value, dict):
            yield str(name), ""
            yield from _flat(value, root, str(name))
        else:
            said = _resolved(value, nested, root) if isinstance(value, str) else value
            yield RENAMED.get((within, name), str(name)), said


def _resolved(text: str, section: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    """Return a text with OmegaConf's interpolations resolved, such as `${multiply:4, ${.name}}`."""

    def value(match: re.Match[str]) -> str:
        function, inner = match.groups()
        if function is None:
            *path, name = inner.removeprefix("training.").split(".")
            values: Any = section if path == [""] else reduce(_section, path, root)
            return str(values.get(name, match[0]))
        numbers = [int(number[:18]) for number in map(str.strip, inner.split(",")) if number.isdecimal()]
        is_known = function in FUNCTIONS and len(numbers) == inner.count(",") + 1 and 0 not in numbers[1:]
        return str(reduce(FUNCTIONS[function], numbers)) if is_known else match[0]

    for _ in range(MOST_NESTED):
        text = INTERPOLATION.sub(value, text, MOST_NESTED)
    return text


def _section(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = values.get(name)
    return section if isinstance(section, dict) else {}


def _flags(path: str, text: str) -> Iterator[tuple[str, Value]]:
    """Yield the arguments `--flag value` of a script's last training. A flag without a value is True.

    If no command has the number of layers, all commands and variables count.
    """
    try:
        lines = [line for line in commands_run(text) if "--" in line and not line.startswith("echo ")]
        started = [line for line in lines if re.search("--num[-_]layers", line) and not re.match(r"\w+= ", line)]
        started.sort(key=lambda line: "train" in line)  # others convert checkpoints, or serve the model
        words = [word for line in started[-1:] or lines for word in (*shlex.split(line), "--")]
    except ValueError as error:
        raise InputError(f"{path}: expected a shell script: {error}") from error
    words = [part for word in words for part in (word.split() if " --" in f" {word}" else [word])]
    for word, following in pairwise(words):
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            said = value if equals else "" if NO_VALUE.match(following) else following
            yield name.strip("-\"')(").replace("_", "-"), said.strip("\"')(\n") or True


SETTINGS = {
    "overlap-grad-reduce": "overlaps-gradients=yes", "overlap-param-gather": "overlaps-parameters=yes",
    "tp-comm-overlap": "hides-exchanges=yes", "cross-entropy-loss-fusion": "loss-in-place=yes",
    "grad-reduce-in-bf16": "gradient-bytes=2", "fp8-param-gather": "gathered-bytes=1",
    "no-gradient-accumulation-fusion": "adds-up-beside=no",
}  # fmt: skip
"""Fields of the stack that settings change. Megatron-LM overlaps nothing unless it is told to."""


def _stack(fields: Fields, stack: str) -> str:
    """Return a stack with the fields that settings change."""
    for name, change in SETTINGS.items():
        is_off = not fields.switch(name) or (name.startswith("fp8") and fields.text("fp8-format", "fp8") is None)
        if is_off and not (change.endswith("=yes") and (stack.startswith("megatron") or name in fields.values)):
            continue
        changed = f"{stack},{change.replace('=yes', '=no') if is_off else change}"
        stack = stack if stack_named(changed) == stack_named(stack) else changed
    return stack


def launch_of(fields: Fields, engine: str = "Megatron-LM", stack: str = "megatron") -> LaunchFile:
    """Return the training that Megatron-LM's arguments describe. Raises InputError for unsupported models."""
    for name in OTHER_MODELS:
        if fields.text(name) not in {None, "False", "0"}:
            raise InputError(f"{fields.path}: {name}: expected a GPT with its states on devices, found {name} set")
    if fields.text("window-size") is not None:
        fields.assumed.append("attention to all earlier tokens instead of a window")
    if fields.text("mtp-num-layers") not in {None, "0"}:
        fields.assumed.append("no layers that predict further tokens (mtp-num-layers)")
    if (optimizer := fields.text("optimizer") or "adam") not in {"adam", "sgd"}:
        fields.assumed.append(f"Adam instead of {optimizer}")
    deepspeed = fields.text("deepspeed", "deepspeed-config", "zero-stage") not in {None, "False"}
    tp = fields.whole("tensor-model-parallel-size") or 1
    pp = fields.whole("pipeline-model-parallel-size") or 1
    if fields.whole("micro-batch-size") is None:
        fields.assumed.append("micro-batch-size 1")
    degrees = {
        "tp": tp, "pp": pp, "cp": fields.whole("context-parallel-size", "ds-sequence-parallel-size"),
        "ep": fields.whole("expert-model-parallel-size", "moe-expert-parallel-size"),
        "sp": fields.switch("sequence-parallel"), "zero": _zero(fields), "recompute": _recomputed(fields),
        "schedule": _schedule(fields, pp), "micro_batch": fields.whole("micro-batch-size") or 1,
    }  # fmt: skip
    if fields.whole("ds-sequence-parallel-size") not in {None, 1}:
        fields.assumed.append("context parallelism in a ring instead of exchanged heads")
    model, options = _model(fields, tp)
    return fields.launch(
        engine="Megatron-DeepSpeed" if deepspeed else engine,
        stack="megatron-deepspeed" if deepspeed else _stack(fields, stack), model=model, options=options,
        degrees=degrees, batch=fields.whole("global-batch-size"), devices=_devices(fields),
        names=NAMES if engine != "NeMo" else {word: NEMO_NAMES.get(word, name) for word, name in NAMES.items()},
        spelled=SPELLED,
    )  # fmt: skip


def _devices(fields: Fields) -> int | None:
    """Return the number of devices; None if it is not set, or known only when it starts, as "gpu" is."""
    names = ("world-size",), ("nproc-per-node", "num-gpus", "ngpus-per-node"), ("nnodes", "num-nodes")
    world, each, nodes = (fields.whole(*of) if (fields.text(*of) or "").isdecimal() else None for of in names)
    has_nodes = nodes is not None or fields.text(*names[2]) is None
    return world or (each * (nodes or 1) if each is not None and has_nodes else None)


def _zero(fields: Fields) -> int:
    stages = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
    if fields.switch("use-megatron-fsdp", "use-custom-fsdp"):
        return stages.get(fields.text("data-parallel-sharding-strategy") or "optim_grads_params", 1)
    if fields.switch("use-torch-fsdp2"):
        return 3
    return fields.stage("zero-stage") or int(fields.switch("use-distributed-optimizer"))


def _recomputed(fields: Fields) -> str:
    said = fields.text("recompute-granularity")
    if said in {"full", "selective"}:
        return said
    if fields.switch("checkpoint-activations", "recompute-activations"):
        return "full" if fields.switch("checkpoint-activations") else "selective"
    return "none"


def _schedule(fields: Fields, pp: int) -> str:
    chunks = fields.whole("num-virtual-stages-per-pipeline-rank")
    layers = fields.whole("num-layers-per-virtual-pipeline-stage")
    if layers is not None:
        chunks, rest = divmod(fields.required("num-layers"), pp * layers)
        if rest or not chunks:
            raise InputError(
                f"{fields.path}: num-layers-per-virtual-pipeline-stage: {layers} does not divide the layers"
            )
    if fields.switch("enable-zbh1-pipeline"):
        return "zero-bubble"
    return f"interleaved:{chunks}" if chunks is not None and chunks > 1 else "1f1b"


def _model(fields: Fields, tp: int) -> tuple[str, dict[str, object]]:
    """Return the zoo's name of a GPT or a Llama of these sizes, and its options."""
    layers = fields.required("num-layers", most=MOST_LAYERS)
    width, heads = map(fields.required, ("hidden-size", "num-attention-heads"))
    grouped = fields.values.get("group-query-attention") is None or fields.switch("group-query-attention")
    groups = fields.whole("num-query-groups") if grouped else None
    hidden, head = fields.whole("ffn-hidden-size"), fields.whole("kv-channels")
    experts = fields.whole("num-experts") or 1
    options: dict[str, object] = {
        "sequence": fields.required("seq-length"), "vocabulary": _vocabulary(fields, tp), "heads": heads,
        "tied": not fields.switch("untie-embeddings-and-output-weights"), "dtype": _precision(fields),
        "optimizer": "sgd" if fields.text("optimizer") == "sgd" else "adam",
    }  # fmt: skip
    gated = fields.switch("swiglu", "quick-geglu") or fields.text("glu-activation") is not None
    rotary = "rope" in (fields.text("position-embedding-type") or "") or fields.switch("use-rotary-position-embeddings")
    head = None if head == width // heads else head
    latent = fields.switch("multi-latent-attention")
    if not (gated or rotary or latent or experts > 1 or groups or head or hidden not in {None, 4 * width}):
        flash = fields.switch("use-flash-attn") or fields.text("transformer-impl") != "local"
        options |= {"flash": flash, "dropout": fields.share("hidden-dropout", 0.1)}
        return f"transformer-{layers}-{width}", options
    wide = 8 * width // 3 // 64 * 64 if gated else 4 * width
    options |= {"groups": groups or heads, "hidden": hidden or wide, "gated": gated}
    options |= {"head_size": head} if head else {}
    if experts > 1:
        chosen, own = fields.whole("moe-router-topk") or 2, fields.whole("moe-ffn-hidden-size")
        options |= {"experts": experts, "chosen_experts": chosen, "dense_hidden": options["hidden"]}
        shared = "moe-shared-expert-intermediate-size"
        options |= {"shared_hidden": None if fields.text(shared) == "0" else fields.whole(shared)}
        options |= {"dense_layers": _dense_layers(fields, layers) or None} | ({"hidden": own} if own else {})
    if latent:
        plain, rotated = fields.whole("qk-head-dim") or 128, fields.whole("qk-pos-emb-head-dim") or 64
        rank = fields.whole("kv-lora-rank") or 32
        options |= {"head_size": plain + rotated, "rotated_size": rotated, "key_rank": rank}
        options |= {"query_rank": fields.whole("q-lora-rank"), "value_size": fields.whole("v-head-dim") or 128}
    return f"llama-{layers}-{width}", {name: value for name, value in options.items() if value is not None}


def _dense_layers(fields: Fields, layers: int) -> int:
    """Return the number of leading layers without experts. Raises InputError if others have none."""
    said = fields.text("moe-layer-freq") or "1"
    terms = re.findall(r"\[([01](?:,[01])*)\](?:\*(\d{1,5}))?", said.replace(" ", ""))
    kinds = [(kind.replace(",", ""), int(times or 1)) for kind, times in terms] if said != "1" else [("1", layers)]
    is_whole = sum(len(kind) * times for kind, times in kinds) == layers
    if not is_whole or "10" in (each := "".join(kind * times for kind, times in kinds)):
        raise InputError(
            f"{fields.path}: moe-layer-freq: expected experts in all {layers} layers, or in all but the first, "
            f"found {said}"
        )
    return each.count("0")


def _vocabulary(fields: Fields, tp: int) -> int:
    """Return the padded size of the vocabulary."""
    padded = fields.whole("padded-vocab-size", "pad-vocab-size-to")
    if padded is not None:
        return padded
    words = fields.whole("vocab-size") or TOKENIZERS.get((fields.text("tokenizer-type") or "").lower())
    tokenizer = fields.text("tokenizer-model", "tokenizer-name-or-path")
    if words is None:
        with suppress(GraphError):  # the published model that the tokenizer is named after; no file is read
            words = size_of(f"{PREFIX}{tokenizer}".removesuffix(".json")).vocabulary
    if words is None:
        words = USUAL_WORDS
        fields.assumed.append(f"vocabulary {words}")
    multiple = (fields.whole("make-vocab-size-divisible-by") or USUAL_MULTIPLE) * tp
    return -(-words // multiple) * multiple


def _precision(fields: Fields) -> str:
    switched = fields.text("fp8-format", "fp8")
    has_format = fields.switch("fp8-hybrid", "fp8-e4m3") or "fp8" in (fields.text("precision") or "")
    if has_format if switched is None else switched.lower() != "false":
        return "mixed-float8"
    if fields.switch("fp16"):
        return "mixed-float16"
    if not fields.switch("bf16"):
        fields.assumed.append("float32 (neither --bf16 nor --fp16 is set)")
        return "float32"
    return "mixed"
