"""What engines that are told degrees are given: checked by their parsers, schemas, and the packages themselves."""

import argparse
import json
import re
import shlex
import tomllib
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import planner
from planner.errors import PlanError
from planner.export.setup import Setup, parallel_of
from planner.export.targets import TARGETS, Launch, engines_of
from planner.export.transformers import transformer_of
from planner.graph import GraphBuilder, Init, Optimizer, training_graph
from planner.models import llama, sequences
from planner.parallel import Parallel

SCHEMAS = Path(__file__).parent / "schemas"
LAUNCHES = {name: target for name, target in TARGETS.items() if isinstance(target, Launch)}
PYTHON = {"list": list, "int": int, "float": float, "str": str, "bool": bool, "dict": dict}

CASES = [
    ("gpt2", "dp=8,zero=3", 32, "adamw"),
    ("gpt2", "dp=8,zero=1,micro-batch=1", 32, "adam"),
    ("gpt2", "dp=8,zero=2,micro-batch=2", 32, "adam"),
    ("gpt2", "dp=8", 32, "momentum"),
    ("gpt2", "tp=2,dp=4", 32, "adamw"),
    ("gpt-3-175b", "tp=8,pp=16,dp=8,micro-batch=1,recompute=full", 256, "adamw"),
    ("gpt-3-175b", "tp=8,sp,pp=8,dp=2,zero=1,micro-batch=1,recompute=selective,schedule=interleaved:3", 64, "sgd"),
    ("llama-3.1-8b", "tp=2,sp,cp=2,dp=2,zero=3", 16, "adamw"),
    ("llama-3.1-405b", "tp=8,sp,pp=16,dp=4,zero=2,micro-batch=1,schedule=interleaved:2", 64, "adamw"),
    ("llama-2-70b", "pp=4,dp=2,micro-batch=1,schedule=gpipe", 16, "adam"),
    ("mixtral-8x7b", "tp=2,dp=4", 16, "adamw"),
    ("mixtral-8x7b", "tp=2,sp,dp=4,ep=4,zero=1", 16, "adamw"),
    ("bloom-176b", "tp=4,pp=12,dp=8,micro-batch=1", 192, "adam"),
]


@cache
def graph_of(model, batch, optimizer="adamw", dtype="mixed"):
    return planner.model(model, batch=batch, optimizer=optimizer, dtype=dtype)


@cache
def setup(model, parallel, *options):
    return Setup(graph_of(model, *options), Parallel.read(parallel))


def written(target):
    """Every case that a target can run, with its text."""
    for case in CASES:
        job = setup(*case)
        if not LAUNCHES[target].cannot(job):
            yield job, LAUNCHES[target].write(job, "run")


def schema(name):
    return json.loads((SCHEMAS / f"{name}.json").read_text())


def is_of(value, kind):
    """Whether a value is of a kind: a type, or choices."""
    return (
        value in kind
        if isinstance(kind, list)
        else isinstance(value, PYTHON[kind]) and (kind == "bool" or not isinstance(value, bool))
    )


@pytest.mark.parametrize("name", [*sequences.SIZES, *llama.SIZES, *llama.EXPERTS])
def test_sizes_are_read_from_the_graph(name):
    size = (sequences.SIZES | llama.SIZES | llama.EXPERTS)[name]
    for dtype in ("float32", "mixed") if name in ("gpt2", "llama-2-7b") else ("float32",):
        sizes = transformer_of(graph_of(name, 1, "none", dtype))
        for field in ("layers", "width", "heads", "vocabulary", "sequence", "tied"):
            assert getattr(sizes, field) == getattr(size, field), field
        if name in sequences.SIZES:
            assert (sizes.groups, sizes.hidden, sizes.norm) == (size.heads, 4 * size.width, "LayerNorm")
            assert sizes.positions == ("alibi" if size.alibi else "learned")
        else:
            assert (sizes.groups, sizes.hidden, sizes.norm) == (size.groups, size.hidden, "RMSNorm")
            assert (sizes.positions, sizes.rotary_base, sizes.stretched) == ("rope", size.base, size.stretched)
            assert sizes.experts == size.experts


def test_parameters_are_those_that_are_published():
    """OpenAI's GPT-2, BLOOM's model card, Meta's checkpoints, Mistral's paper."""
    published = {
        "gpt2": 124_439_808,
        "gpt2-xl": 1_557_611_200,
        "bloom-176b": 176_247_271_424,
        "llama-2-7b": 6_738_415_616,
        "llama-3.1-8b": 8_030_261_248,
        "llama-3.1-405b": 405_853_388_800,
        "mixtral-8x7b": 46_702_792_704,
    }
    assert {name: transformer_of(graph_of(name, 1, "none", "float32")).parameters for name in published} == published


@pytest.mark.parametrize("name", ["mlp-2-16", "rnn-2-8", "encoder-decoder-2-64", "wresnet-14-1"])
def test_what_is_no_stack_of_blocks(name):
    assert transformer_of(planner.model(name, batch=4)) is None


def test_sizes_of_a_module_of_pytorch():
    torch = pytest.importorskip("torch")
    module = import_module("examples.gpt").GPT(64, 8, 16, 4, 2)
    tokens = torch.zeros((2, 8), dtype=torch.long)
    sizes = transformer_of(planner.from_torch(module, (tokens, tokens)))
    assert (sizes.layers, sizes.heads, sizes.head_width, sizes.hidden, sizes.tied) == (2, 4, 4, 64, True)
    assert sizes.parameters == sum(parameter.numel() for parameter in module.parameters())


def megatron_parser():
    """Megatron-LM's argument parser, of the flags that are written."""
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    for name, kind in schema("megatron")["flags"].items():
        if kind == "switch":
            parser.add_argument(f"--{name}", action="store_true")
        elif isinstance(kind, list):
            parser.add_argument(f"--{name}", choices=kind)
        else:
            parser.add_argument(f"--{name}", type=PYTHON[kind])
    return parser


def parsed(text):
    words = shlex.split(text.replace("\\\n", " ").splitlines()[-1])
    return megatron_parser().parse_args(words[words.index("pretrain_gpt.py") + 1 :])


def test_megatron_flags():
    cases = list(written("megatron"))
    assert len(cases) >= 8
    for job, text in cases:
        flags, parallel = parsed(text), job.parallel
        degrees = flags.tensor_model_parallel_size, flags.pipeline_model_parallel_size, flags.context_parallel_size
        assert degrees == (parallel.tp, parallel.pp, parallel.cp)
        assert flags.global_batch_size == job.batch == flags.micro_batch_size * parallel.dp * job.micro_batches
        assert flags.sequence_parallel == parallel.sp
        assert flags.bf16
        # As Megatron Core counts a stage's layers.
        layers = job.transformer.layers
        if flags.pipeline_model_parallel_layout is None:
            assert layers % (parallel.pp * (flags.num_virtual_stages_per_pipeline_rank or 1)) == 0
        else:
            stages = unfolded(flags.pipeline_model_parallel_layout)
            assert len(stages) == parallel.pp * parallel.chunks
            assert sum(stage.count("t") for stage in stages) == layers
            assert (stages[0][0], stages[-1][-1], "".join(stages).count("E")) == ("E", "L", 1)


def unfolded(layout):
    """A layout's stages, as Megatron-LM reads it: `(text)*n` and `c*n` repeated, commas left out."""
    layout = re.sub(r"\(([^)]*)\)\*(\d+)", lambda match: match[1] * int(match[2]), layout.replace(",", ""))
    return re.sub(r"(.)\*(\d+)", lambda match: match[1] * int(match[2]), layout).split("|")


def test_torchtitan_toml():
    known, cases = schema("torchtitan")["sections"], list(written("torchtitan"))
    assert len(cases) >= 4
    for job, text in cases:
        settings = tomllib.loads(text)
        for section, values in settings.items():
            for name, value in values.items():
                assert is_of(value, known[section][name]), (section, name, value)
        degrees, training, parallel = settings["parallelism"], settings["training"], job.parallel
        data = degrees["data_parallel_replicate_degree"] * degrees["data_parallel_shard_degree"]
        assert data == parallel.dp
        assert training["global_batch_size"] % (training["local_batch_size"] * data) == 0
        if parallel.pp > 1:
            chunks = degrees.get("module_fqns_per_model_part", [[]] * parallel.pp)
            assert len(chunks) == parallel.pp * parallel.chunks
            if parallel.chunks > 1:
                layers = [f"layers.{layer}" for layer in range(job.transformer.layers)]
                assert [module for chunk in chunks for module in chunk] == ["tok_embeddings", *layers, "norm", "output"]


def test_torchtitan_takes_its_file(tmp_path):
    config = pytest.importorskip("torchtitan.config", reason="torchtitan 0.2 is not installed")
    if not hasattr(config, "JobConfig"):
        pytest.skip("torchtitan 0.2 is not installed, but another version, which reads no TOML")
    for job, text in written("torchtitan"):
        (tmp_path / "run.toml").write_text(text)
        job_config = config.ConfigManager().parse_args([f"--job.config_file={tmp_path / 'run.toml'}"])
        assert job_config.parallelism.tensor_parallel_degree == job.parallel.tp


def test_deepspeed_json():
    known, cases = schema("deepspeed")["keys"], list(written("deepspeed"))
    assert len(cases) >= 5
    for job, text in cases:
        settings = json.loads(text)
        for key, value in settings.items():
            kind = known[key]
            if isinstance(kind, dict):
                assert all(is_of(inner, kind[name]) for name, inner in value.items()), (key, value)
            else:
                assert is_of(value, kind), (key, value)
        micro, count = settings["train_micro_batch_size_per_gpu"], settings["gradient_accumulation_steps"]
        assert settings["train_batch_size"] == micro * count * job.parallel.dp  # as DeepSpeed asserts


def test_deepspeed_takes_its_configuration():
    config = pytest.importorskip("deepspeed.runtime.config", reason="DeepSpeed is not installed")
    for job, text in written("deepspeed"):
        data = json.loads(text)
        data["train_batch_size"] //= job.parallel.dp  # one process stands for all
        assert config.DeepSpeedConfig(data).gradient_accumulation_steps == job.micro_batches


def test_torchrun_takes_its_lines():
    run = pytest.importorskip("torch.distributed.run")
    for job, text in [*written("torchrun"), *written("megatron")]:
        words = shlex.split(text.replace("\\\n", " ").splitlines()[-1])
        flags = run.parse_args(words[words.index("torchrun") + 1 :])
        assert int(flags.nnodes) * int(flags.nproc_per_node) == job.parallel.workers
        assert flags.training_script == ("executor" if flags.module else "pretrain_gpt.py")


REFUSED = [
    ("megatron", "mlp-2-16", "dp=4", (), "which mlp-2-16 is not"),
    ("megatron", "bloom-176b", "tp=4,dp=2", (), "ALiBi"),
    ("megatron", "gpt2", "pp=4,dp=2,micro-batch=1,schedule=gpipe", (), "run 1f1b or interleaved, not gpipe"),
    ("megatron", "gpt2", "pp=2,micro-batch=1,schedule=zero-bubble", (), "not zero-bubble"),
    ("megatron", "gpt2", "tp=8", (), "tp=8 does not divide 12 heads"),
    ("megatron", "gpt2", "dp=2", ("rmsprop",), "no optimizer rmsprop"),
    ("torchtitan", "mlp-2-16", "dp=4,zero=3", (), "only models of token sequences"),
    ("torchtitan", "gpt2", "tp=2,dp=2,zero=3", (), "add sp"),
    ("torchtitan", "gpt2", "dp=8,zero=1", (), "set zero=2"),
    ("torchtitan", "gpt2", "tp=2,sp,dp=2", (), "not combine replicas with tp=2: set zero=3"),
    (
        "torchtitan",
        "gpt2",
        "pp=2,micro-batch=1,schedule=zero-bubble",
        (),
        "zero-bubble schedule needs at least two chunks",
    ),
    (
        "torchtitan",
        "gpt2",
        "pp=2,dp=2,zero=3,micro-batch=1,schedule=interleaved:1",
        (),
        "interleaved schedule needs at least two chunks",
    ),
    ("torchtitan", "gpt2", "pp=4,dp=2,zero=3,micro-batch=4", (), "needs at least 4 micro-batches"),
    ("torchtitan", "llama-2-70b", "tp=16,sp,dp=2,zero=3", (), "tp=16 does not divide 8 heads of keys and values"),
    ("torchtitan", "gpt2", "pp=2,micro-batch=1", (), "with pp=2, it supports mixed precision only"),
    ("torchtitan", "gpt2", "cp=2,dp=2", (), "set zero=3"),
    ("torchtitan", "gpt2", "dp=2", ("momentum",), "no optimizer momentum"),
    ("megatron", "gpt2", "cp=3,dp=2", (), "6 equal parts do not divide its sequence of 1024"),
    ("deepspeed", "gpt2", "cp=2,dp=2", (), "Ulysses"),
    ("deepspeed", "gpt2", "tp=2,sp", (), "does not split norms"),
    ("deepspeed", "gpt2", "pp=2,dp=2,zero=2,micro-batch=1", (), "zero=0 or 1, not 2"),
    ("deepspeed", "gpt2", "pp=2,tp=2,micro-batch=1", (), "needs Megatron's modules"),
    ("deepspeed", "gpt2", "pp=2,micro-batch=1,schedule=interleaved", (), "run 1f1b, not interleaved"),
    ("fsdp2", "gpt2", "pp=2,dp=2,micro-batch=1", (), "torch.distributed.pipelining"),
    ("fsdp2", "gpt2", "tp=2,dp=2", (), "export-plan --to dtensor"),
    ("fsdp2", "gpt2", "cp=2,dp=2", (), "context parallelism"),
    ("fsdp2", "gpt2", "dp=2,recompute=full", (), "torch.utils.checkpoint"),
]


@pytest.mark.parametrize(("target", "model", "parallel", "options", "why"), REFUSED)
def test_what_an_engine_cannot_run_is_one_clause(target, model, parallel, options, why):
    job = setup(model, parallel, 16, *options)
    refusal = LAUNCHES[target].refusal(job)
    assert refusal.startswith(f"{LAUNCHES[target].title} cannot run {job.parallel}: ")
    assert why in refusal
    assert "\n" not in refusal
    assert engines_of(job)[target] in refusal
    assert engines_of(job)["torchrun"] == ""


def test_parallelism_of_plans():
    graph = planner.model("mlp-2-16", batch=8)
    assert parallel_of(planner.plan(graph, workers=4, searcher="data-parallel", ways=(4,))) == Parallel(dp=4)
    asked = "dp=2,tp=2,zero=1"
    assert parallel_of(planner.plan(graph, parallel=asked)) == Parallel.read(asked)
    with pytest.raises(PlanError, match="a plan of named parallelism"):
        parallel_of(planner.plan(graph, workers=4))


def test_what_fills_no_nodes():
    job = Setup(planner.model("gpt2", batch=12), Parallel(dp=12), 8)
    with pytest.raises(PlanError, match="multiple of the 8 devices per node, found 12"):
        LAUNCHES["torchrun"].write(job, "plan")


@pytest.mark.parametrize(("present", "expected"), [(None, "cpu"), ("cuda", "cuda"), ("xpu", "xpu")])
def test_a_module_is_shared_out_over_the_accelerators_that_there_are(present, expected, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: present is not None)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device(present))
    file = file_for_fsdp2()
    meshes = []
    file["init_device_mesh"] = lambda *given, **_: meshes.append(given)
    file["fully_shard"] = lambda *_, **__: None
    module = torch.nn.Linear(2, 2)
    file["distribute"](module)
    file["distribute"](module, "meta")
    assert meshes == [(expected, (2,)), ("meta", (2,))]


def file_for_fsdp2():
    file = {}
    exec(TARGETS["fsdp2"].write(setup("mlp-2-16", "dp=2,zero=3", 8), "split"), file)
    return file


def laid_out(layout):  # noqa: PLR0911 -- a layout each
    """A model of two blocks in a list as people write them, with the names of the parts that are gathered together."""
    nn = pytest.importorskip("torch").nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)
            self.experts = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(2))

    first, second = Block(), Block()
    model = nn.Module()
    model.head = nn.Linear(4, 9)
    blocks = nn.ModuleList((first, second))
    if layout == "a list in a dict":
        model.parts = nn.ModuleDict({"table": nn.Embedding(9, 4), "layers": blocks, "norm": nn.LayerNorm(4)})
        model.head.weight = model.parts["table"].weight
        return model, ["parts.layers.0", "parts.layers.1"]
    if layout == "a dict of numbers":
        model.layers = nn.ModuleDict({"0": first, "1": second})
        return model, ["layers.0", "layers.1"]
    if layout == "a sequence":
        model.layers = nn.Sequential(nn.Embedding(9, 4), first, second, nn.LayerNorm(4))
        return model, ["layers.1", "layers.2"]
    if layout == "stages":
        model.stages = nn.Sequential(nn.Sequential(first, second), nn.Linear(4, 4), nn.Module(), nn.Module())
        model.stages[2].blocks, model.stages[3].blocks = nn.ModuleList([Block()]), nn.Sequential(Block(), Block())
        return model, ["stages.0.0", "stages.0.1", "stages.2", "stages.3.blocks.0", "stages.3.blocks.1"]
    if layout == "a part of another":
        model.encoder = nn.Module()
        model.encoder.layers = blocks
        return model, ["encoder.layers.0", "encoder.layers.1"]
    if layout == "a weight of two blocks":
        second.up.weight = first.up.weight
        model.layers = nn.ModuleList((first, second, Block()))
        return model, ["layers.2"]
    if layout == "one block twice":
        model.layers = nn.ModuleList((first, first, second))
        return model, ["layers.2"]
    model.layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    return model, []


LAYOUTS = (
    "a list in a dict", "a dict of numbers", "a sequence", "stages", "a part of another", "a weight of two blocks",
    "one block twice", "layers alone",
)  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_weights_of_a_block_are_gathered_together(layout):
    model, expected = laid_out(layout)
    names = {part: name for name, part in model.named_modules()}
    assert [names[block] for block in file_for_fsdp2()["blocks"](model)] == expected


def test_a_graph_that_reads_a_vector_by_numbers_is_no_transformer():
    b = GraphBuilder()
    vector, numbers = b.weight("w", (8,), Init("uniform", 1.0)), b.integers("x", (4,), 8)
    read = b.apply("index_select", vector, numbers, name="read", dim=0)
    graph = training_graph(b, {"loss": b.apply("sum", read, name="loss", dims=(0,))}, Optimizer("sgd"))
    assert transformer_of(graph) is None
