"""Projected steps: causes add up, published formulas and times, and the simulation of every worker's events."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

import planner
import simulator
from planner.errors import InputError
from planner.graph.ir import ITEM_BYTES
from planner.layout import elements, owned_by_all
from planner.parallel import Parallel
from planner.program.calls import node_work
from simulator.projection.kernels import fused, kernel_of, readers_of
from simulator.projection.network import cluster
from simulator.projection.replica import replica
from simulator.projection.result import IDEAL, INEFFICIENCY
from simulator.projection.stack import FIELDS, STACKS, Kernels, Stack, stack_named
from simulator.projection.steps import Steps
from tensor_partitioner.projection import inner_of, job_of, project
from tensor_partitioner.replicas import ZooModel
from topologies import load_topology

HIDDEN, HEADS, SEQUENCE, VOCABULARY = 6144, 64, 2048, 51200
GPT = {
    "heads": HEADS, "sequence": SEQUENCE, "vocabulary": VOCABULARY, "dtype": "mixed-float16", "optimizer": "adam",
    "dropout": 0.1, "attention_dropout": 0.1,
}  # fmt: skip


def step(parallel, batch=64, stack="megatron", name="transformer-16-6144", machine="dgx-a100-pod-8", **options):
    return project(
        name, {**GPT, **options}, batch=batch, parallel=Parallel.read(parallel), machine=machine, stack=stack
    )


WAYS = (
    "dp=8,micro-batch=1",
    "dp=8,zero=1,micro-batch=1,recompute=full",
    "dp=8,zero=2,micro-batch=1",
    "dp=16,zero=3,micro-batch=1",
    "tp=8,micro-batch=2,recompute=selective",
    "tp=8,sp,pp=2,dp=4,zero=1,micro-batch=1,recompute=full",
    "tp=4,sp,pp=4,dp=2,micro-batch=2,schedule=interleaved:2",
    "pp=8,dp=8,micro-batch=1,schedule=gpipe",
    "pp=4,micro-batch=4,schedule=zero-bubble",
)


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("way", WAYS)
def test_causes_add_up_to_the_seconds_and_none_is_negative(way, stack):
    for runs in (stack, replace(STACKS[stack], straggler=1.2, jitter=0.02)):
        projected = step(way, stack=runs)
        assert sum(projected.shares.values()) == pytest.approx(projected.seconds, rel=1e-9)
        assert min(projected.shares.values()) >= -1e-9 * projected.seconds
        assert projected.roof_factor == pytest.approx(projected.seconds / projected.shares["ideal compute"])
        assert projected.roof_factor > 1
        lines = sum(line.nbytes for line in projected.memory)
        assert projected.margin_bytes == pytest.approx(projected.capacity_bytes - lines)


def test_operations_are_those_of_the_published_formula():
    """Narayanan and others (SC 2021), section 5.1, with all computed again: 96 B s l h^2 (1 + s / 6h + V / 16lh)."""
    batch, layers = 8, 16
    for recompute, per_layer in (("none", 72), ("full", 96)):
        projected = step(f"tp=8,micro-batch=4,recompute={recompute}", batch=batch)
        attention, head = SEQUENCE / (6 * HIDDEN), VOCABULARY * 6 / (per_layer * layers * HIDDEN)
        expected = per_layer * batch * SEQUENCE * layers * HIDDEN**2 * (1 + attention + head)
        assert projected.hardware_operations == pytest.approx(expected, rel=0.002)


@pytest.mark.parametrize(
    ("way", "per_layer"),
    [
        ("tp=8,micro-batch=1", 10 + 24 / 8 + 5 * HEADS * SEQUENCE / (HIDDEN * 8)),
        ("tp=8,sp,micro-batch=1", 34 / 8 + 5 * HEADS * SEQUENCE / (HIDDEN * 8)),
        ("tp=8,micro-batch=1,recompute=selective", 10 + 24 / 8),
        ("tp=8,sp,micro-batch=1,recompute=selective", 34 / 8),
        ("tp=8,micro-batch=1,recompute=full", 2),
    ],
)
def test_activations_of_a_layer_are_those_of_the_published_formula(way, per_layer):
    """Korthikanti and others (2022), Table 2, in units of sequence x samples x hidden."""

    def activations(layers):
        projected = step(way, batch=1, name=f"transformer-{layers}-6144", machine="dgx-a100")
        return next(line.nbytes for line in projected.memory if line.what == "activations")

    predicted = (activations(20) - activations(10)) / 10 / (SEQUENCE * HIDDEN)
    assert predicted == pytest.approx(per_layer, rel=0.002)


def test_a_step_of_22_billion_weights_takes_what_was_measured():
    """Korthikanti and others (2022), Table 5: 1.42 s, and 1.10 s with sequence parallel and selective recomputation."""
    for way, measured_s in (("tp=8", 1.42), ("tp=8,sp", 1.10)):
        recompute = "selective" if "sp" in way else "full"
        projected = step(
            f"{way},micro-batch=4,recompute={recompute}", 4, name="transformer-48-6144", machine="dgx-a100"
        )
        assert projected.seconds == pytest.approx(measured_s, rel=0.05)


def test_zero_shares_out_states_gradients_and_weights():
    """Rajbhandari and others (2020), Figure 1: of 16 bytes a weight 12 are shared out, then 2 more, then the last 2."""

    def lasting(zero):
        projection = step(
            f"dp=8,micro-batch=1{zero}", 8, Stack(Kernels("all"), 0.0, gradient_bytes=2), machine="dgx-a100"
        )
        whats = ("weights in compute precision", "master weights", "optimizer state", "gradients")
        return sum(line.nbytes for line in projection.memory if line.what in whats)

    whole = lasting("")
    expected = [1, (4 + 12 / 8) / 16, (2 + 14 / 8) / 16, 1 / 8]
    assert [lasting(f",zero={stage}" if stage else "") / whole for stage in range(4)] == pytest.approx(
        expected, rel=1e-3
    )


def test_gradients_that_are_shared_out_are_scattered_with_every_micro_batch():
    """DeepSpeed's stage 2 keeps a share of them alone, of one micro-batch, too; stage 1 reduces what has added up."""
    runs = Stack(Kernels("all"), host_s=0.0, gathers_ahead=False, overlaps_gradients=False)
    cause = "exposed ZeRO/FSDP communication"
    once, four = (step("dp=8,zero=2,micro-batch=1", batch, runs, machine="dgx-a100") for batch in (8, 32))
    added_up = step("dp=8,zero=1,micro-batch=1", 32, runs, machine="dgx-a100")
    assert once.shares["exposed gradient all-reduce"] == added_up.shares[cause] == 0
    assert four.shares[cause] == pytest.approx(4 * once.shares[cause], rel=1e-9)
    assert once.shares[cause] == pytest.approx(added_up.shares["exposed gradient all-reduce"], rel=0.05)


def test_the_slowest_device_takes_all_with_it():
    plain, slow = (
        step("dp=8,micro-batch=1"),
        step("dp=8,micro-batch=1", stack=replace(STACKS["megatron"], straggler=2.0)),
    )
    computed_s = sum(plain.shares[cause] for cause in plain.shares if cause in (IDEAL, INEFFICIENCY))
    waiting_s = slow.shares["waiting for the slowest device"]
    assert waiting_s == pytest.approx(computed_s + plain.shares["optimizer"], rel=0.02)


def test_a_correction_of_kernels_slows_what_a_device_computes():
    plain, older = (step("tp=8,micro-batch=1", stack=replace(STACKS["megatron"], kernel_times=of)) for of in (1.0, 2.0))
    computed = ("ideal compute", "kernel inefficiency", "optimizer")
    plain_s, older_s = (sum(projection.shares[cause] for cause in computed) for projection in (plain, older))
    assert older_s == pytest.approx(2 * plain_s, rel=1e-9)
    launched_s = plain.shares["host overhead"]  # the first kernels', of which longer ones hide more
    assert plain_s - launched_s <= older.seconds - plain.seconds <= plain_s


def test_updated_weights_are_gathered_during_the_next_forward_pass():
    """A block waits for its weights, and gathers follow one another: the recurrence of two streams."""
    stack = replace(STACKS["megatron"], overlaps_parameters=True, slowdown=1.0, host_s=0.0, host_exchange_s=0.0)
    parallel = Parallel.read("dp=8,zero=1,micro-batch=1")
    inner = inner_of(ZooModel.of("transformer-4-1024", {**GPT, "heads": 16}), 8, parallel)
    steps = {}
    for overlaps in (False, True):
        job = job_of(inner, 8, parallel, cluster("hgx-h100"), replace(stack, overlaps_parameters=overlaps))
        steps[overlaps] = Steps(job).parameters_s(job.blocks)
    gathered_s = computed_s = waited_s = 0.0
    for block in job.blocks:
        gathered_s += job.network.replicas_s("all-gather", block.weight_bytes)
        waited_s = max(waited_s, gathered_s) + block.forward.device_s
        computed_s += block.forward.device_s
    assert steps[True] == pytest.approx(waited_s - computed_s, rel=1e-9)
    assert 0 < steps[True] < steps[False]


@pytest.mark.parametrize("replicas", [2, 8])
def test_deepspeed_keeps_four_bytes_per_weight_and_sixteen_in_shards(replicas):
    """DeepSpeed's documentation, memory requirements: ZeRO of 16-bit weights and gradients."""
    projected = step(f"dp={replicas},zero=1,micro-batch=1,recompute=full", stack="megatron-deepspeed", batch=replicas)
    held = {line.what: line.nbytes for line in projected.memory}
    weights = held["weights in compute precision"] / 2
    lasting = (
        "weights in compute precision",
        "gradients",
        "master weights",
        "optimizer state",
        "gradients of the update",
    )
    assert sum(held[what] for what in lasting) == pytest.approx(weights * (4 + 16 / replicas))


def test_gathered_weights_of_eight_bits_are_half_the_bytes():
    whole, halved = (
        step("dp=8,zero=1,micro-batch=1", stack=replace(STACKS["megatron"], gathered_bytes=size)).sent_bytes["dp"]
        for size in (2, 1)
    )
    reduced = step("dp=8,micro-batch=1").sent_bytes["dp"] / 2
    assert whole - halved == pytest.approx((whole - reduced) / 2, rel=1e-6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("megatro", "stack: expected eager, .*: did you mean megatron"),
        ("megatron,overlap=no", "stack: unknown field 'overlap=no'"),
        ("megatron,overlap-gradients=no", "stack: unknown field .*: did you mean overlaps-gradients"),
        ("megatron,fragmentation=0", "stack: fragmentation: expected a number from 1, found '0'"),
        ("megatron,straggler=0.5", "stack: straggler: expected a number from 1, found '0.5'"),
        ("megatron,slowdown=nan", "stack: slowdown: expected a number from 1, found 'nan'"),
        ("megatron,softmaxes=0", "stack: softmaxes: expected a whole number from 1, found '0'"),
        (
            "megatron,attention=flash-9",
            "stack: attention: expected 'flash-1' or .*, found 'flash-9'",
        ),
        ("megatron,overlaps-gradients", "stack: overlaps-gradients: expected yes or no, found ''"),
    ],
)
def test_a_stack_that_does_not_exist_is_refused(text, message):
    with pytest.raises(InputError, match=message):
        stack_named(text)


def test_fields_of_a_stack_change_its_name_alone_does_not():
    composer = stack_named("fsdp2,attention=flash-1,loss-in-place=yes,gathers-ahead-backward=no")
    assert composer == STACKS["composer"]
    assert stack_named("megatron, gradient-bytes = none").gradient_bytes is None
    assert stack_named("megatron-deepspeed,update-gradient-bytes=0").update_gradient_bytes == 0
    assert stack_named("megatron,host-s=0,jitter=0.01").jitter == 0.01


def test_the_page_lists_all_fields_of_a_stack():
    page = (Path(__file__).parents[2] / "docs" / "explanation" / "projection.md").read_text()
    named = re.findall(r"`([a-z-]+)`", page)
    assert [name for name in FIELDS if name.replace("_", "-") not in named] == []


LIKE_EVENTS = Stack(Kernels("operators"), host_s=0.0, host_exchange_s=0.0, slowdown=1.0, overlaps_gradients=False)
"""What a simulation of all events without prefetching does, too."""

PERCEPTRON = {"dtype": "bfloat16", "optimizer": "sgd"}


@pytest.mark.parametrize("parallel", ["tp=2", "tp=4", "dp=2", "dp=8"])
def test_a_projection_is_near_the_simulation_of_all_events(parallel):
    """Exchanges within a layer are the same; of kernels every one takes longer to launch there than the gap here.

    The loss reads its logits once here, there with each of its three nodes. Gradients are reduced together here, there
    tensor by tensor, with a delay each.
    """
    machine, samples, width = load_topology("dgx-a100"), 4096, 4096
    name, spec = f"mlp-4-{width}", machine.devices[0].spec
    graph = planner.model(name, batch=samples, **PERCEPTRON)
    events = simulator.simulate(planner.plan(graph, parallel=parallel), machine, prefetch=0)
    way = Parallel.read(parallel)
    shares = project(name, PERCEPTRON, batch=samples, parallel=way, machine=machine, stack=LIKE_EVENTS).shares
    launches_s = len(graph.nodes) * spec.launch_latency_s
    logits_s = 2 * samples * width / (spec.memory_bandwidth_bytes_per_s * spec.efficiency.elementwise)
    computed_s = shares["ideal compute"] + shares["kernel inefficiency"] + shares["optimizer"]
    assert 0 <= events.compute_seconds[0] - computed_s <= launches_s + 2 * logits_s
    if way.tp > 1:
        inside_s = shares["exposed model parallel communication"]
        assert inside_s == pytest.approx(events.exposed_seconds, rel=1e-9)
    else:
        reduced_s, tensors = shares["exposed gradient all-reduce"], len(graph.updates)
        assert 0 <= events.exposed_seconds - reduced_s <= tensors * 120e-6


def test_kernels_of_a_layer_are_those_that_megatron_launches():
    """A norm, a bias with its product, a mask with its softmax and dropout with a sum are one kernel each."""
    host_s = 1e-3  # so long that every launch shows

    def launches(stack, layers):
        runs = Stack(stack.kernels, host_s=host_s, host_exchange_s=0.0)
        projection = step(
            "tp=1", 1, runs, f"transformer-{layers}-1024", "dgx-a100", heads=16, sequence=512, vocabulary=1024
        )
        return projection.stages[0].forward_s + projection.stages[0].backward_s

    counts = {
        name: round((launches(STACKS[name], 8) - launches(STACKS[name], 4)) / 4 / host_s)
        for name in ("megatron", "eager", "compile")
    }
    assert counts["compile"] < counts["megatron"] < counts["eager"]
    assert 38 <= counts["megatron"] <= 46  # 14 forward; 12 products, 5 biases, 2 norms, sums and masks backward


@pytest.mark.parametrize(("batch", "passes"), [(4, 2), (64, 3)])
def test_a_norm_over_a_batch_that_no_multiprocessor_keeps_is_read_twice(batch, passes):
    """56 x 56 pixels of 4 images are 50 kB of a channel, of 64 images 803 kB."""
    graph = planner.model("wresnet-50-1", batch=batch, image=224)
    shares = replica(planner.plan(graph, workers=1)).shares
    readers = readers_of(shares)
    norm = next(run for run in fused(shares, "operators", readers) if run[-1].node.name == "stage1.unit1.conv1.bn")
    read_once = 64 * 56 * 56 * batch * 4
    assert kernel_of(norm, readers).nbytes == pytest.approx(passes * read_once, rel=1e-3)


FLASH = {"dropout": 0.0, "attention_dropout": 0.0, "flash": True, "dtype": "mixed"}


def test_an_operand_is_converted_to_eight_bits_once():
    """Of a layer's operands forward attention's result alone has a kernel of its own for it."""
    machine, rows = "hgx-h100", SEQUENCE
    device = load_topology(machine).devices[0].spec

    def stage(dtype):
        return step("micro-batch=1", 1, "nemo", "transformer-8-4096", machine, **FLASH | {"dtype": dtype}).stages[0]

    streamed = device.memory_bandwidth_bytes_per_s * device.efficiency.elementwise
    h, attained = 4096, device.attained_flop_per_s
    sixteen, eight = stage("mixed"), stage("mixed-float8")
    products_s = 8 * 2 * rows * 12 * h * h * (1 / attained.bfloat16 - 1 / attained.float8)
    converted_s = 8 * rows * h * (2 + 2) / streamed  # what attention makes; norms and GELU write eight bits themselves
    saved_s = sixteen.forward_s - eight.forward_s
    assert saved_s == pytest.approx(products_s - converted_s, rel=0.2)


def test_exchanges_that_are_hidden_leave_a_piece_and_what_they_slow_down():
    plain, hiding = (
        step("tp=8,sp,micro-batch=1", 8, stack, **FLASH, machine="hgx-h100") for stack in ("megatron", "nemo")
    )
    cause, slowdown = "exposed model parallel communication", STACKS["nemo"].slowdown
    left_s = plain.shares[cause] * (1 / 8 + (slowdown - 1) * 7 / 8)
    assert left_s <= hiding.shares[cause] < 1.2 * left_s  # beside the embedding there is little work


def test_a_stack_that_is_not_known_is_refused_in_a_line():
    with pytest.raises(InputError, match="found 'megatro'"):
        step("tp=8", stack="megatro")


COMPILED_LAYERS = "fsdp2-compiled,layers-only=yes"

LLAMA = {"heads": 32, "groups": 8, "sequence": 8192, "vocabulary": 128256, "hidden": 14336, "dtype": "mixed",
         "optimizer": "adam"}  # fmt: skip


def llama(parallel, batch, stack, layers=32, **options):
    way, machine = Parallel.read(parallel), "hgx-h100-nodes-16"
    return project(
        f"llama-{layers}-4096", {**LLAMA, **options}, batch=batch, parallel=way, machine=machine, stack=stack
    )


@pytest.mark.parametrize(
    ("devices", "stack", "measured_gib"),
    [(8, "fsdp2", 82.4), (8, COMPILED_LAYERS, 77.0), (128, "fsdp2", 67.0), (128, COMPILED_LAYERS, 62.0)],
)
def test_memory_of_selective_recomputation_that_keeps_every_second_product_is_what_was_measured(
    devices, stack, measured_gib
):
    """github.com/pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, Tables 1 and 3."""
    projection = llama(f"dp={devices},zero=3,micro-batch=2,recompute=selective", 2 * devices, stack)
    reserved = sum(line.nbytes for line in projection.memory if line.what != "context and communicators")
    assert reserved == pytest.approx(measured_gib * 2**30, rel=0.12)


def test_what_selective_recomputation_keeps_of_a_layer_by_hand():
    """Queries, values, the gate, what goes down, attention's result and its logarithms, and the layer's own."""

    def kept(layers):
        projection = llama("micro-batch=1,recompute=selective", 1, "fsdp2", layers)
        return next(line.nbytes for line in projection.memory if line.what == "activations")

    tokens, width, item = 8192, 4096, 2
    expected = tokens * (item * (width * (1 + 1 / 4 + 1 + 1 + 1) + 14336) + 32 * item)
    assert (kept(10) - kept(5)) / 5 == pytest.approx(expected, rel=1e-3)


def test_a_gate_is_activated_again_by_a_kernel_that_fuses_it_with_the_product():
    def kept(stack):
        projection = llama("micro-batch=1", 1, stack, 8)
        return next(line.nbytes for line in projection.memory if line.what == "activations")

    assert kept("fsdp2") - kept("fsdp2-compiled") >= 8 * 8192 * 14336 * 2


def test_context_parallel_workers_have_a_loss_of_their_own_tokens_alone():
    operations = {
        way: llama(way, 8, "megatron", 4).hardware_operations for way in ("dp=8", "dp=4,cp=2", "dp=2,tp=2,cp=2")
    }
    assert operations["dp=4,cp=2"] == pytest.approx(operations["dp=8"], rel=1e-3)
    assert operations["dp=2,tp=2,cp=2"] == pytest.approx(operations["dp=8"], rel=1e-3)


def test_a_loss_in_place_keeps_logits_as_they_are_and_has_no_gradients_beside_them():
    composer = STACKS["composer"]
    plain = replace(composer, kernels=replace(composer.kernels, loss_in_place=False))
    (inplace, kept), (gradients, larger) = zip(
        *([line.nbytes for line in llama("micro-batch=1", 1, stack, 4).memory if "activations" in line.what]
          for stack in (composer, plain)),
        strict=True,
    )  # fmt: skip
    logits = 8192 * 128256 * 2
    assert kept - inplace == logits
    assert gradients < larger == 2 * 2 * logits


def test_weights_gathered_after_the_layer_before_has_computed_are_waited_for():
    composer, cause = STACKS["composer"], "exposed ZeRO/FSDP communication"
    ahead = replace(composer, gathers_ahead_backward=True)
    waits_s = [llama("dp=8,zero=3,micro-batch=1", 8, stack).shares[cause] for stack in (ahead, composer)]
    gathered_s = waits_s[1] - waits_s[0]
    weights = 8.03e9 * 2
    links = 18 * 20.6e9 * 0.983  # of an H100, as much as rings attain
    assert gathered_s == pytest.approx(weights * 7 / 8 / links, rel=0.25)


def test_fewer_than_four_masked_softmaxes_are_not_one_kernel():
    """Of sixteen heads eight workers have two each: of one sample by five kernels, of two samples by one."""
    host_s = 1.0

    def launches(micro_batch, layers):
        runs = Stack(STACKS["megatron"].kernels, host_s=host_s, host_exchange_s=0.0)
        way, sizes = f"tp=8,micro-batch={micro_batch}", {"heads": 16, "sequence": 512, "vocabulary": 1024}
        projection = step(way, micro_batch, runs, f"transformer-{layers}-1024", "dgx-a100", **sizes)
        return projection.stages[0].forward_s / host_s

    of_one, of_two = (round((launches(samples, 8) - launches(samples, 4)) / 4) for samples in (1, 2))
    assert of_one - of_two == 4


def test_fully_connected_layers_without_a_gate_have_two_matrices():
    def operations(gated):
        return llama("micro-batch=1", 1, "megatron", 8, gated=gated, vocabulary=1024).model_operations

    matrix = 6 * 8192 * 4096 * 14336 * 8
    assert operations(True) - operations(False) == pytest.approx(matrix, rel=1e-9)


@pytest.mark.parametrize(("heads", "width", "workers"), [(6, 96, 4), (5, 80, 4), (5, 80, 2), (7, 63, 3)])
def test_the_worker_looked_at_has_the_largest_part(heads, width, workers):
    """Heads that do not divide: of every product and of what is held no worker has more than the replica's."""
    options = {"heads": heads, "sequence": 16, "vocabulary": 101, "batch": 4}
    plan = planner.plan(planner.model(f"transformer-2-{width}", **options), parallel=f"tp={workers}")
    looked_at = replica(plan)
    for share, work in zip(looked_at.shares, plan.traffic().work, strict=True):
        every = [
            node_work(work.signature, work.strategy, plan.ways, worker).operations for worker in range(plan.workers)
        ]
        assert share.operations == max(every)
    for name, tensor in plan.graph.tensors.items():
        every = [elements(held) for held in owned_by_all(tensor.shape, plan.layouts[name], plan.ways)]
        assert looked_at.held[name] == max(every) * ITEM_BYTES[tensor.dtype]
