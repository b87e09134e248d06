"""What a row asks the predictor: a model and its options, a batch, how it is parallel, a machine, a software stack."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from planner.model_source import source_files
from planner.models import llama, zoo
from planner.parallel import Parallel
from results.scoreboard.cells import SetError, words
from results.scoreboard.machines import USUAL_NODE, machine_of
from results.scoreboard.row import Row
from results.scoreboard.sizes import Size, compact, size_of
from simulator.projection.network import Cluster
from simulator.projection.stack import stack_named
from tensor_partitioner.display import nearest

STACKS = {
    "megatron": ("megatron lm", "megatron core", "mcore", "transformer engine"),
    "nemo": ("nemo megatron", "megatron bridge"),
    "megatron-2021": ("megatron lm of 2021",),
    "megatron-deepspeed": ("deepspeed", "deepspeed megatron", "bigscience megatron deepspeed", "gpt neox"),
    "fsdp2": ("fsdp", "torchtitan", "titan", "pytorch fsdp", "lit gpt", "litgpt", "nanotron", "picotron"),
    "composer": ("llm foundry", "mosaicml"),
    "eager": ("pytorch", "torch", "hf", "huggingface", "transformers", "pytorch eager", "tensorflow", "jax eager"),
    "compile": ("torch compile", "compiled", "inductor", "jax", "xla", "maxtext", "nanogpt"),
}  # fmt: skip
"""Software stacks, with the frameworks that are of each."""

COMPILED = {"eager": "compile", "fsdp2": "fsdp2-compiled"}
"""What stacks become by torch.compile."""

CHANGES = re.compile(r"(,[^,=]+=[^,]*)+$")
"""Fields of the stack that a framework's cell changes: "megatron,libraries=2021"."""

SHARDED = re.compile(r"fsdp|titan|foundry|mosaic|composer")
"""Frameworks whose data parallel workers share out weights unless it is said that they do not."""

SEQUENCE_PARALLEL = ("megatron", "nemo", "fsdp2", "fsdp2-compiled", "compile")
"""Stacks whose tensor parallelism splits sequences too unless it is said that it does not."""

PADS_VOCABULARIES = re.compile(r"megatron|nemo")
VOCABULARY_MULTIPLE = 128
"""Stacks that pad a vocabulary to a multiple of so many words times the tensor parallel workers.

NVIDIA/Megatron-LM, megatron/training/arguments.py, `--make-vocab-size-divisible-by`.
"""

MICRO_BATCHES = (1, 2, 4, 8, 16)
CHUNKS = (1, 2, 3, 4, 5, 6, 7, 8)


@dataclass(frozen=True, slots=True)
class Run:
    """One question to the predictor; of several ways of being parallel the fastest that fits is meant."""

    name: str
    options: tuple[tuple[str, object], ...]
    batch: int
    ways: tuple[Parallel, ...]
    machine: Cluster
    machine_name: str
    stack: str
    size: Size | None

    @property
    def devices(self) -> int:
        """How many devices train."""
        return self.ways[0].workers

    @property
    def group(self) -> str:
        """What runs have in common whose order is of interest: model, precision, machine and number of devices."""
        options = dict(self.options) | ({"vocabulary": self.size.vocabulary} if self.size else {})
        said = " ".join(f"{name}={value}" for name, value in options.items() if value is not None)
        return f"{self.name} {said}, {self.devices} of {self.machine_name}"


def run_of(row: Row, folder: Path) -> Run:
    """Return what a row asks; SetError, in one line, where it cannot be expressed."""
    size = size_of(row)
    stack = _stack_of(row)
    base = stack.partition(",")[0]
    shape = _degrees(row, base)
    machine, machine_name = machine_of(row, shape.workers, folder)
    sequence = size.sequence if size else row.sequence
    batch = _batch(row, shape.dp, sequence)
    ways = tuple(_ways(row, shape, batch, size))
    name, options = _model(row, size, machine, folder)
    if size is not None and PADS_VOCABULARIES.search(base):
        options["vocabulary"] = _padded(size.vocabulary, VOCABULARY_MULTIPLE * shape.tp)
    return Run(name, tuple(options.items()), batch, ways, machine, machine_name, stack, size)


def _stack_of(row: Row) -> str:
    if row.framework is None:
        return "compile" if row.compiled else "megatron"
    name = CHANGES.sub("", row.framework)
    plain = words(name)
    names = {words(name): stack for stack, others in STACKS.items() for name in (stack, *others)}
    if said := max((name for name in names if f"{plain} ".startswith(f"{name} ")), key=len, default=None):
        stack = COMPILED.get(names[said], names[said]) if row.compiled else names[said]
        stack += row.framework.removeprefix(name)
        stack_named(stack)
        return stack
    raise SetError(f"framework: expected one of {', '.join(STACKS)}, found {row.framework!r}{nearest(plain, names)}")


def _degrees(row: Row, stack: str) -> Parallel:
    """Return the degrees; what is left of the devices is data parallel."""
    pp, tp, cp = row.pp or 1, row.tp or 1, row.cp or 1
    others = pp * tp * cp
    devices = row.devices or (
        row.nodes * (row.per_node or USUAL_NODE) if row.nodes else others * max(row.dp or 1, row.ep or 1)
    )
    if devices % others:
        raise SetError(f"expected devices in multiples of tp {tp} x pp {pp} x cp {cp}, found {devices}")
    dp, ep = devices // others, row.ep or 1
    if row.dp is not None and dp not in (row.dp, row.dp * ep):  # some count those alone who have the same experts
        raise SetError(f"expected tp {tp} x pp {pp} x cp {cp} x dp {row.dp} devices, found {devices}")
    if dp % ep:
        raise SetError(f"expected ep that divides {dp} data parallel devices, found {ep}")
    sharded = row.framework is not None and SHARDED.search(row.framework.lower()) is not None
    zero = (3 if sharded else 0) if row.zero is None else row.zero
    sp = stack in SEQUENCE_PARALLEL if row.sp is None else row.sp
    return Parallel(
        pp=pp, dp=dp, ep=ep, cp=cp, tp=tp, sp=sp and tp > 1, zero=zero if dp * cp > 1 else 0,
        recompute=row.recompute or "none",
    )  # fmt: skip


def _batch(row: Row, dp: int, sequence: int | None) -> int:
    """Return the samples of a step, from whatever says them."""
    if row.global_batch is not None:
        return row.global_batch
    if row.batch_tokens is not None:
        if sequence is None or row.batch_tokens % sequence:
            raise SetError(f"expected a batch of whole samples of {sequence} tokens, found {row.batch_tokens} tokens")
        return row.batch_tokens // sequence
    if row.device_batch is not None:
        return row.device_batch * dp
    if isinstance(row.micro_batch, int) and (row.accumulation is not None or (row.pp or 1) == 1):
        return row.micro_batch * dp * (row.accumulation or 1)
    raise SetError("expected a global batch, or a micro-batch and how many there are, found neither")


def _ways(row: Row, shape: Parallel, batch: int, size: Size | None) -> Iterator[Parallel]:
    """Yield how the run is parallel: one way, or all that are possible of what was the best and is not said."""
    if batch % shape.dp:
        raise SetError(f"expected a batch of whole shares of {shape.dp} data parallel workers, found {batch} samples")
    share = batch // shape.dp
    micro, chunks = row.micro_batch, row.chunks
    if micro is None and row.accumulation is not None and share % row.accumulation == 0:
        micro = share // row.accumulation
    if micro is None:
        micro = "best" if shape.pp > 1 else share
    sizes = (
        [micro_batch for micro_batch in MICRO_BATCHES if share % micro_batch == 0] if micro == "best" else [int(micro)]
    )
    if share % sizes[0]:
        raise SetError(
            f"expected {share} samples of a worker in whole micro-batches, found micro-batches of {sizes[0]}"
        )
    for micro_batch in sizes:
        for schedule in _schedules(row, shape, chunks, share // micro_batch, size):
            yield replace(shape, micro_batch=micro_batch, schedule=schedule)


def _schedules(
    row: Row, shape: Parallel, chunks: int | str | None, micro_batches: int, size: Size | None
) -> Iterator[str]:
    if shape.pp == 1:
        yield "1f1b"
    elif chunks == "best":
        whole = size is not None and micro_batches % shape.pp == 0
        layers = size.layers if size else 0
        for count in CHUNKS if whole else (1,):
            if count == 1 or layers % (shape.pp * count) == 0:
                yield "1f1b" if count == 1 else f"interleaved:{count}"
    elif chunks is not None and int(chunks) > 1:
        yield f"interleaved:{chunks}"
    else:
        yield row.schedule or "1f1b"


def _padded(words: int, multiple: int) -> int:
    return -(-words // multiple) * multiple


def _model(row: Row, size: Size | None, machine: Cluster, folder: Path) -> tuple[str, dict[str, object]]:
    """Return the zoo's name of a row's model, or a function in a file, and its options."""
    training: dict[str, object] = {"dtype": _dtype(row, machine), "optimizer": row.optimizer}
    if size is None:
        return _of_zoo(row, training, folder)
    options: dict[str, object] = {
        "sequence": size.sequence, "vocabulary": size.vocabulary, "heads": size.heads, "tied": size.tied,
    }  # fmt: skip
    options |= training | {"optimizer": row.optimizer or "adam"}
    flash, dropout = row.attention is not False, row.dropout or 0.0
    gated = size.architecture == "llama"
    if gated or size.experts > 1 or size.ffn != 4 * size.hidden or size.kv_heads != size.heads or size.head_size:
        if dropout or not flash:
            raise SetError(f"{row.model or 'model'}: dropout and unfused attention are expressed of GPTs alone")
        sizes: dict[str, object] = {"groups": _groups(size, row.tp or 1), "hidden": size.ffn, "gated": gated}
        sizes |= {"head_size": size.head_size} if size.head_size else {}
        if size.experts > 1:
            sizes |= {"experts": size.experts, "chosen_experts": size.chosen, "capacity": row.capacity}
        return f"llama-{size.layers}-{size.hidden}", options | {key: of for key, of in sizes.items() if of is not None}
    options |= {"flash": flash, "dropout": dropout, "attention_dropout": 0.0 if flash else dropout}
    return f"transformer-{size.layers}-{size.hidden}", options


def _groups(size: Size, workers: int) -> int:
    """Return the heads of keys: with fewer than tensor parallel workers each of these has a copy of one."""
    return workers if workers % size.kv_heads == 0 == size.heads % workers else size.kv_heads


def _of_zoo(row: Row, training: dict[str, object], folder: Path) -> tuple[str, dict[str, object]]:
    """Return a model that the zoo has by this name, or a function makes, with the options that a row says in words."""
    if row.model is None:
        raise SetError("expected a model's name, or layers and hidden; found neither")
    sizes = {compact(name): name for name in (*llama.SIZES, *llama.EXPERTS)}
    name = sizes.get(compact(row.model), row.model)
    if files := source_files(row.model):
        if not (folder / files[0]).is_file():
            raise SetError(f"model {row.model!r}: expected a file beside the set, found none")
        name = str(folder / row.model)
        training["dtype"] = row.precision  # of a function its own where none is said
    elif not zoo.is_zoo_name(name):
        hint = nearest(name, (*sizes.values(), *zoo.families()))
        raise SetError(f"model {row.model!r} is not known: expected its layers, hidden and heads beside it{hint}")
    chosen = {"sequence": row.sequence, "vocabulary": row.vocabulary, "tied": row.tied, **training}
    return name, {key: value for key, value in chosen.items() if value is not None} | dict(_said(row.options or ""))


def _said(text: str) -> Iterator[tuple[str, object]]:
    """Yield options written as image=224, width=2."""
    for part in filter(None, re.split(r"[,;\s]+", text)):
        key, _, value = part.partition("=")
        number = float(value) if re.fullmatch(r"\d+(\.\d+)?", value) else None
        switch = {"true": True, "false": False}.get(value.lower())
        whole = number is not None and number == int(number)
        yield key, switch if switch is not None else value if number is None else int(number) if whole else number


def _dtype(row: Row, machine: Cluster) -> str:
    """Return the precision: unless it is said mixed, by bfloat16 where the device has it."""
    if row.precision is not None:
        return row.precision
    return "mixed" if machine.built.devices[0].spec.peak_flop_per_s.bfloat16 is not None else "mixed-float16"
