"""Launch files: what is read of them, against what exporters wrote and files as people write them."""

import random
from dataclasses import replace
from functools import partial

import pytest

import planner
from planner.errors import InputError, PlanError
from planner.export.setup import Setup
from planner.export.targets import TARGETS
from planner.export.transformers import transformer_of
from planner.models.zoo import buildable, with_few_layers
from planner.parallel import Parallel
from tensor_partitioner.launch import read_launch
from tensor_partitioner.launch.trainers import MODELS
from tensor_partitioner.projection import project

SCRIPT = """#!/bin/bash
GPUS_PER_NODE=8
NUM_NODES=${NUM_NODES:-2}
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
TP=2   # of each node
usage() { echo "train.sh --tensor-model-parallel-size N --fp16"; }
LARGE_ARGS=(--num-layers 96 --num-experts 8)
HIDDEN="2048"
MODEL_ARGS=(--num-layers
    16 --hidden-size ${HIDDEN}  # it's one of "7B" (or so)
    --ffn-hidden-size 5632 --num-attention-heads 32 --group-query-attention --num-query-groups 4
    --seq-length 4096 --max-position-embeddings 4096 --position-embedding-type rope --swiglu
    # --num-experts 8
    --tokenizer-type Llama2Tokenizer --untie-embeddings-and-output-weights
)
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes=$NUM_NODES pretrain_gpt.py ${MODEL_ARGS[@]} \\
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size 4 --sequence-parallel \\
    --num-layers-per-virtual-pipeline-stage 2 --use-distributed-optimizer $LOAD --recompute-activations \\
    --micro-batch-size 2 --global-batch-size 64 --wandb-name run#1 "${OTHERS[@]}" --bf16 2>&1 | tee log.txt
python tools/convert.py --tensor-model-parallel-size 1 --num-layers 96 --swiglu
"""


def written(folder, name, text):
    path = folder / name
    path.write_text(text)
    return str(path)


def test_a_script_with_variables_arrays_and_comments_is_read(tmp_path):
    launch = read_launch(written(tmp_path, "train.sh", SCRIPT))
    assert launch.model == "llama-16-2048"
    assert launch.options == {
        "sequence": 4096, "vocabulary": 32000, "heads": 32, "tied": False, "dtype": "mixed", "optimizer": "adam",
        "groups": 4, "hidden": 5632, "gated": True,
    }  # fmt: skip
    assert launch.devices == 16
    parallel = launch.parallel(16)
    assert str(parallel) == "pp=4,dp=2,tp=2,sp,zero=1,micro-batch=2,schedule=interleaved:2,recompute=selective"
    assert launch.samples(16) == 64
    assert launch.assumed == ()
    assert launch.stack == "megatron,overlaps-gradients=no,overlaps-parameters=no"
    overlapping = SCRIPT.replace("--bf16", "--bf16 --overlap-grad-reduce --overlap-param-gather --tp-comm-overlap")
    assert read_launch(written(tmp_path, "overlaps.sh", overlapping)).stack == "megatron,hides-exchanges=yes"


def test_arguments_as_they_are_printed_are_read(tmp_path):
    said = {
        "num_layers": 24, "hidden_size": 1024, "num_attention_heads": 16, "seq_length": 2048, "bf16": False,
        "fp16": True, "padded_vocab_size": 50304, "tensor_model_parallel_size": 2, "micro_batch_size": 4,
        "global_batch_size": 512, "hidden_dropout": 0.0, "num_experts": None, "world_size": 32,
    }  # fmt: skip
    lines = (f"  {name} {'.' * (48 - len(name))} {value}\n" for name, value in said.items())
    launch = read_launch(written(tmp_path, "log.txt", f"------ arguments ------\n{''.join(lines)}"))
    assert launch.model == "transformer-24-1024"
    assert (launch.options["vocabulary"], launch.options["dtype"]) == (50304, "mixed-float16")
    assert (launch.devices, str(launch.parallel(32))) == (32, "dp=16,tp=2,micro-batch=4")


DEEPSEEK = """pretrain_gpt.py --num-layers 4 --hidden-size 2048 --num-attention-heads 16 --ffn-hidden-size 10944
    --seq-length 4096 --padded-vocab-size 102400 --untie-embeddings-and-output-weights --swiglu --bf16
    --num-experts 64 --moe-router-topk 6 --moe-ffn-hidden-size 1408 --moe-shared-expert-intermediate-size 2816
    --moe-layer-freq "([0]*1+[1]*3)" --multi-latent-attention --kv-lora-rank 512 --qk-head-dim 128
    --qk-pos-emb-head-dim 64 --v-head-dim 128 --window-size "(4095,0)" --mtp-num-layers 0
"""


def test_a_script_of_deepseek_is_read_as_the_model_of_that_name(tmp_path):
    launch = read_launch(written(tmp_path, "deepseek.sh", DEEPSEEK.replace("\n", " ")))
    assert launch.assumed == ("attention to all earlier tokens instead of a window", "micro-batch-size 1")
    same = {"batch": 1, "dtype": "mixed", "optimizer": "adam"}
    built = planner.model(launch.model, **{**launch.options, **same})
    named = planner.model("hf:deepseek-ai/DeepSeek-V2-Lite", layers=4, **same)
    shapes = [{name: tensor.shape for name, tensor in graph.tensors.items()} for graph in (built, named)]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("name", MODELS)
def test_a_flavor_of_torchtitan_is_a_model_that_can_be_built(name, tmp_path):
    for flavor in (*MODELS[name], f"{next(iter(MODELS[name]))}_flex"):
        text = f'[model]\nname = "{name}"\nflavor = "{flavor}"'
        launch = read_launch(written(tmp_path, "run.toml", text))
        small, options, _ = with_few_layers(launch.model, launch.options, 1)
        assert planner.model(small, **{**options, "batch": 1}).nodes


def test_widths_that_a_script_leaves_out_are_those_of_megatron(tmp_path):
    """Multi-head latent attention and a gate need no other argument; the width is rounded down to 64."""
    text = "pretrain_gpt.py --num-layers 2 --hidden-size 4096 --num-attention-heads 32 --seq-length 8 --bf16 "
    options = read_launch(written(tmp_path, "gated.sh", f"{text} --swiglu")).options
    assert dict(options)["hidden"] == 10880
    options = read_launch(written(tmp_path, "latent.sh", f"{text} --multi-latent-attention")).options
    assert {"head_size": 192, "key_rank": 32, "value_size": 128, "hidden": 16384}.items() <= dict(options).items()


def drawn(seed):
    """Return a graph's name and options, and parallelism of it, by chance."""
    rng = random.Random(seed)
    gated = rng.random() < 0.5
    model = "llama-4-256" if gated else "transformer-4-256"
    options = {"sequence": 128, "vocabulary": 512, "heads": 8, "dtype": "mixed", "optimizer": "adamw"}
    options |= {"groups": rng.choice((2, 4, 8)), "hidden": 768} if gated else {"flash": True}
    tp, pp, cp, dp = (rng.choice((1, 2)) for _ in range(4))
    zero = rng.choice((0, 1, 2, 3)) if dp * cp > 1 else 0
    schedule = rng.choice(("1f1b", "interleaved:2")) if pp > 1 else "1f1b"
    parallel = Parallel(
        pp=pp, dp=dp, cp=cp, tp=tp, sp=tp > 1, zero=zero, micro_batch=2, schedule=schedule,
        recompute=rng.choice(("none", "selective", "full")),
    )  # fmt: skip
    return model, options, parallel


def runs(engine, case):
    model, options, parallel = case
    return not TARGETS[engine].cannot(Setup(planner.model(model, batch=8 * parallel.dp, **options), parallel))


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize(
    ("engine", "name"), [("megatron", "run.sh"), ("torchtitan", "run.toml"), ("deepspeed", "run.json")]
)
def test_what_an_exporter_writes_is_read_again(engine, name, seed, tmp_path):
    model, options, parallel = next(filter(partial(runs, engine), map(drawn, range(100 * seed, 100 * seed + 100))))
    batch = 8 * parallel.dp
    float8 = engine != "deepspeed" and seed % 2 == 0
    setup = Setup(planner.model(model, batch=batch, **options), parallel, float8=float8)
    path = written(tmp_path, name, TARGETS[engine].write(setup, "run"))
    launch = read_launch(path, None if engine == "megatron" else model)
    read = launch.parallel(parallel.workers)
    assert launch.options["dtype"] == ("mixed-float8" if float8 else "mixed")
    if engine == "deepspeed":  # what is recomputed the model says
        read, parallel = replace(read, recompute="none"), replace(parallel, recompute="none")
    assert str(read) == str(parallel)
    assert launch.samples(parallel.workers) == batch
    if engine == "megatron":
        again = transformer_of(planner.model(launch.model, batch=batch, **buildable(launch.options.items())))
        assert again == transformer_of(setup.graph)
        if parallel.zero < 2:  # Megatron-FSDP does not fuse the accumulation of gradients
            said, priced = (
                project(
                    model,
                    {**options, "dtype": launch.options["dtype"]},
                    batch=batch,
                    parallel=parallel,
                    machine="hgx-h100-nodes-2",
                    stack=stack,
                ).seconds
                for stack in (launch.stack, TARGETS[engine].stack)
            )
            assert said == priced


REFUSED = {
    "bert.sh": ("torchrun pretrain_bert.py --num-layers 2 --hidden-size 8", "expected the training of a GPT"),
    "open.sh": ("torchrun pretrain_gpt.py --num-layers $1 --hidden-size 8", "num-layers: expected a whole number"),
    "other.sh": ("echo hello", "expected a Megatron-LM script"),
    "quotes.sh": ("pretrain_gpt.py --num-layers '2 --hidden-size 8", "expected a shell script"),
    "flux.toml": ('[model]\nname = "flux"\nflavor = "dev"', "model.name: expected llama2, llama3"),
    "broken.toml": ("[model", "expected a Megatron-LM script"),
    "ds.json": ('{"zero_optimization": {"stage": 2}}', "expected --model"),
    "offload.json": ('{"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}', "found them offloaded"),
    "list.json": ("[1]", "found no fields"),
    "lora.yaml": ("base_model: Qwen/Qwen2.5-7B\nadapter: lora", "expected a training of all weights, found lora"),
    "empty.yaml": ("a: 1", "found neither num_layers nor base_model"),
    "types.json": ('{"zero_optimization": "3"}', "zero_optimization: expected fields of its own"),
    "optimizer.json": ('{"optimizer": ["Adam"]}', "optimizer: expected fields of its own"),
    "stage.yaml": ("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: abc}", "zero_stage: expected a stage"),
    "megatron.yaml": ("distributed_type: MEGATRON_LM", "distributed_type: expected FSDP, DEEPSPEED"),
    "away.yaml": ("distributed_type: FSDP\nfsdp_config: {fsdp_offload_params: true}", "found them offloaded"),
    "branches.sh": ("L=2\nif x; then\nL=4\nfi\npretrain_gpt.py --num-layers $L --hidden-size 8", "num-layers: expect"),
    "comment.sh": ("# --num-layers\necho hello", "num-layers, found none"),
    "deep.sh": ("then " * 1200 + "pretrain_gpt.py --num-layers 2", "expected a Megatron-LM script"),
    "every.sh": (
        "pretrain_gpt.py --num-layers 4 --hidden-size 8 --num-attention-heads 1 --seq-length 8 --vocab-size 8 "
        "--num-experts 4 --moe-layer-freq ([0,1]*2)",
        "moe-layer-freq: expected experts in all 4 layers, or in all but the first",
    ),
    "hsdp.toml": (
        '[model]\nname = "llama3"\nflavor = "8B"\n[parallelism]\ndata_parallel_replicate_degree = 4\n'
        "data_parallel_shard_degree = 2",
        "data_parallel_replicate_degree: expected 1 with sharding",
    ),
    "t5.yaml": ("model: {encoder: {num_layers: 2, hidden_size: 8}, decoder: {num_layers: 2}}", "a GPT, found decoder"),
    "offload.toml": ("[training]\nenable_cpu_offload = true", "enable_cpu_offload: expected states on devices"),
    "digits.yaml": ("num_layers: 2\nhidden_size: 0x" + "f" * 6000, "Exceeds the limit (4300 digits)"),
    "aliases.yaml": (
        "a0: &a0 {a: 1}\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40)),
        "more than 262144 values",
    ),
    "digits.json": ('{"train_micro_batch_size_per_gpu": 99999999999999999999}', "expected a whole number from 1 to"),
    "huge.sh": ("pretrain_gpt.py --num-layers 0 --hidden-size 8", "num-layers: expected a whole number from 1"),
}


WITHOUT = ("ds.json", "flux.toml")


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_ends_in_one_line_that_says_the_field(name, tmp_path):
    text, expected = REFUSED[name]
    with pytest.raises(InputError) as ended:
        read_launch(written(tmp_path, name, text), None if name in WITHOUT else "gpt2")
    assert expected in str(ended.value)
    assert name in str(ended.value)
    assert "\n" not in str(ended.value)


def test_files_of_other_trainers_are_read(tmp_path):
    axolotl = "base_model: Qwen/Qwen2.5-7B\nsequence_len: 8192\nmicro_batch_size: 2\ngradient_accumulation_steps: 4\n"
    axolotl += "gradient_checkpointing: true\nbf16: auto\noptimizer: adamw_torch_fused\nfsdp: [full_shard, auto_wrap]\n"
    launch = read_launch(written(tmp_path, "axolotl.yaml", axolotl))
    assert (launch.model, launch.options["sequence"], launch.samples(8)) == ("hf:Qwen/Qwen2.5-7B", 8192, 64)
    assert str(launch.parallel(8)) == "dp=8,zero=3,micro-batch=2,recompute=full"
    fsdp2 = "base_model: Qwen/Qwen3-8B\nfsdp_version: 2\nfsdp_config: {reshard_after_forward: false}\nbf16: true\n"
    launch = read_launch(written(tmp_path, "fsdp2.yaml", fsdp2 + "optimizer: adamw_bnb_8bit\ndp_shard_size: 4\n"))
    assert (str(launch.parallel(4)), launch.devices) == ("dp=4,zero=2,micro-batch=1", 4)
    assert "AdamW with float32 states instead of adamw_bnb_8bit" in launch.assumed
    accelerate = "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 4\nfsdp_config:\n"
    accelerate += "  fsdp_sharding_strategy: SHARD_GRAD_OP\n"
    launch = read_launch(written(tmp_path, "accelerate.yaml", accelerate), "gpt2")
    assert (launch.model, launch.devices, str(launch.parallel(4))) == ("gpt2", 4, "dp=4,zero=2,micro-batch=1")
    nemo = "trainer: {devices: 8, num_nodes: 4}\nmodel: {num_layers: 32, hidden_size: 4096,\n"
    nemo += "  ffn_hidden_size: 11008, num_attention_heads: 32, encoder_seq_length: 4096, activation: fast-swiglu,\n"
    nemo += "  tensor_model_parallel_size: 2, micro_batch_size: 1, global_batch_size: 128, sequence_parallel: true,\n"
    nemo += "  share_embeddings_and_output_weights: false, optim: {name: distributed_fused_adam,\n"
    nemo += "  sched: {name: CosineAnnealing}}, tokenizer: {type: /data/tokenizer.json}}\n"
    launch = read_launch(written(tmp_path, "nemo.yaml", f"mixed_precision: bf16_mixed\n{nemo}"))
    assert (launch.engine, launch.model, launch.devices, launch.batch) == ("NeMo", "llama-32-4096", 32, 128)
    assert (launch.options["dtype"], launch.options["gated"], launch.options["tied"]) == ("mixed", True, False)
    assert str(launch.parallel(32)) == "dp=16,tp=2,sp,zero=1,micro-batch=1"


def test_interpolations_and_switches_of_nemo_are_resolved(tmp_path):
    text = """
trainer: {devices: 8, num_nodes: "${model.nodes}", precision: bf16}
model:
  num_layers: 32
  nodes: 2
  hidden_size: 4096
  ffn_hidden_size: ${multiply:4, ${.hidden_size}}
  num_attention_heads: 32
  num_query_groups: ${divide_floor:${training.model.num_attention_heads}, 4}
  encoder_seq_length: ${.data.seq_length}
  precision: ${training.trainer.precision}
  activation: fast-geglu
  fp8: false
  fp8_hybrid: true
  fp8_wgrad: true
  cpu_offloading: false
  cpu_offloading_num_layers: 4
  gradient_as_bucket_view: true
  moe_token_dispatcher_type: alltoall
  moe_expert_capacity_factor: 1.5
  bucket_cap_mb: 125
  ub_tp_comm_overlap: false
  share_embeddings_and_output_weights: false
  tokenizer: {library: huggingface, type: meta-llama/Llama-3.1-8B}
  data: {seq_length: 8192}
"""
    launch = read_launch(written(tmp_path, "nemo.yaml", text))
    assert (launch.options["hidden"], launch.options["groups"], launch.options["sequence"]) == (16384, 8, 8192)
    assert (launch.options["dtype"], launch.options["gated"], launch.options["vocabulary"]) == ("mixed", True, 128256)
    assert (launch.devices, launch.stack) == (16, "nemo,hides-exchanges=no")
    assert launch.not_priced == ("bucket-cap-mb",)


def test_a_script_of_megatron_deepspeed_is_read(tmp_path):
    text = """
#SBATCH --nodes=16
EP=1 # e.g. 64
if [[ $EP -gt 8 ]]; then EP_DEGREE=8; else EP_DEGREE=$EP; fi
ACTIVATION_CHECKPOINT="true"
OPTIONS=" \\
    --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --num-experts ${EP} \\
    --moe-expert-parallel-size ${EP_DEGREE} --pad-vocab-size-to 250880 --bf16"
# a comment ... with dots
if [ "${ACTIVATION_CHECKPOINT}" = "true" ]; then
OPTIONS="${OPTIONS} \\
    --checkpoint-activations"
fi
if [ "${EP}" = "2" ]; then
OPTIONS="${OPTIONS} --sequence-parallel"
fi
export CMD="pretrain_gpt.py $OPTIONS --deepspeed --zero-stage=1 --pipeline-model-parallel-size 4 --enable-zbh1-pipeline"
srun bash -c "torchrun --nproc_per_node 4 --nnodes $SLURM_NNODES $CMD"
"""
    launch = read_launch(written(tmp_path, "train.slurm", text))
    assert (launch.engine, launch.model, launch.devices) == ("Megatron-DeepSpeed", "transformer-24-2048", 64)
    assert launch.options["vocabulary"] == 250880
    assert str(launch.parallel(64)) == "pp=4,dp=16,zero=1,micro-batch=1,schedule=zero-bubble,recompute=full"


def test_devices_that_degrees_do_not_divide_are_refused(tmp_path):
    launch = read_launch(written(tmp_path, "train.sh", SCRIPT.replace("NODE=8", "NODE=gpu")))
    with pytest.raises((InputError, PlanError), match="multiples of 8, found 12"):
        launch.parallel(12)
