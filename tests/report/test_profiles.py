"""Profiles of others: traces of PyTorch's profiler, written here and made by hand, and Nsight Systems' exports."""

import gzip
import json
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

import planner
from planner.graph.order import kernel_classes
from planner.planning import plan as search_plan
from planner.report.compare import ReportError
from planner.report.profiles import EXPOSED, IDLE, STEP, beside_profile, measured_parts, predicted_parts, read_profile
from planner.report.profiles.profile import (
    COLLECTIVE,
    KERNELS,
    OPERATORS,
    ProfileError,
    Timespan,
    class_by,
    collective_of,
    profile_of,
)
from planner.report.schema import write_reports
from simulator.report import Settings, plan_program, report, simulation_of
from tensor_partitioner.commands.compare import main as compare_command
from tests.project.test_plan_command import run
from topologies import load_topology

TRACE = Path(__file__).with_name("traces") / "mi250_kineto.json.gz"
CLASSES = "product", "attention", "normalization", "reduction", "element-wise", "movement", "optimizer"


def event(name, begin, duration, cat="cpu_op", tid=1, **args):
    return {"ph": "X", "name": name, "cat": cat, "pid": 7, "tid": tid, "ts": begin, "dur": duration, "args": args}


def write_trace(path, events):
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    return path


ON_CPU = [
    event("ProfilerStep#4", 0, 100, "user_annotation"),
    event("ProfilerStep#5", 100, 100, "user_annotation"),
    event("aten::linear", 10, 30),
    event("aten::t", 11, 2),
    event("aten::addmm", 14, 20),
    event("aten::layer_norm", 50, 10),
    event("aten::native_layer_norm", 51, 8),
    event("aten::empty", 52, 1),
    event("aten::gelu", 70, 6),
    event("mine::layer_norm", 80, 10),
    event("aten::mul", 82, 4),
    event("Optimizer.step#Mine.step", 150, 20, "user_annotation"),
    event("aten::addmm", 151, 10),
    event("gloo:all_reduce", 160, 30, "user_annotation", tid=2),
    event("aten::copy_", 170, 5, tid=2),
]


def test_operators_of_a_cpu_are_its_kernels_the_outermost_with_a_rule(tmp_path):
    profile = read_profile(write_trace(tmp_path / "trace.json.gz", ON_CPU))
    assert {name: 1e6 * of for name, of in profile.kernels.items()} == pytest.approx(
        {"product": 15, "normalization": 5, "element-wise": 5, "optimizer": 10}
    )
    assert profile.collectives == pytest.approx({"all-reduce": 15e-6})
    assert (profile.seconds, profile.exposed_s, profile.idle_s) == pytest.approx((100e-6, 10e-6, 55e-6))


def test_a_mark_of_a_step_in_which_nothing_is_called_is_none(tmp_path):
    stub = event("ProfilerStep#6", 200, 3, "user_annotation")
    profiles = [read_profile(write_trace(tmp_path / "trace.json.gz", events)) for events in (ON_CPU, [*ON_CPU, stub])]
    assert profiles[0] == profiles[1]


def test_kernels_that_are_behind_their_host_belong_to_the_step(tmp_path):
    mark, called = event("ProfilerStep#1", 0, 10, "user_annotation"), event("aten::mm", 1, 5, **{"External id": 4})
    behind = on_gpu("ampere_sgemm_128x64_nn", 9, 30, 4)
    profile = read_profile(write_trace(tmp_path / "trace.json.gz", [mark, called, behind]))
    assert (profile.seconds, profile.kernels["product"]) == pytest.approx((39e-6, 30e-6))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(b"{}", mtime=0)[:-9] + b"\0" * 9, "Error|CRC|ended"),
        (json.dumps({"traceEvents": [event("aten::mm", 1, 5)]}).encode(), "the trace does not mark steps"),
        (json.dumps({"traceEvents": [event("ProfilerStep#1", 0, -9, "user_annotation")]}).encode(), "expected kernels"),
    ],
    ids=["damaged", "without marks", "without kernels"],
)
def test_what_is_no_profile_of_steps_is_refused(tmp_path, content, message):
    (tmp_path / "trace.json").write_bytes(content)
    with pytest.raises(ProfileError, match=rf"^{tmp_path}.*({message})"):
        read_profile(tmp_path / "trace.json")


def on_gpu(name, begin, duration, launched, cat="kernel", **args):
    return event(name, begin, duration, cat, tid="stream 7", device=0, **{"External id": launched}, **args)


def test_kernels_of_a_gpu_have_the_class_of_their_operator_or_of_their_name(tmp_path):
    events = [
        event("aten::scaled_dot_product_attention", 0, 9, **{"External id": 1}),
        event("aten::bmm", 1, 2, **{"External id": 2}),
        event("aten::add", 10, 2, **{"External id": 3}),
        on_gpu("ampere_sgemm_128x64_nn", 20, 10, 2),
        on_gpu("vectorized_elementwise_kernel", 30, 5, 3),
        on_gpu("sm90_xmma_gemm_bf16", 35, 20, 99),
        on_gpu("Memcpy DtoD (Device -> Device)", 55, 5, 98, "gpu_memcpy"),
        on_gpu("something", 60, 1, 97),
        on_gpu("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", 50, 40, 96, **{"Process Group Description": "mesh_tp"}),
    ]
    profile = read_profile(write_trace(tmp_path / "trace.json.gz", events), 1)
    assert {name: 1e6 * of for name, of in profile.kernels.items()} == pytest.approx(
        {"attention": 10, "element-wise": 5, "product": 20, "movement": 5, "other": 1}
    )
    assert profile.collectives == pytest.approx({"reduce-scatter, group mesh_tp": 40e-6})
    assert (profile.seconds, profile.exposed_s, profile.idle_s) == pytest.approx((70e-6, 29e-6, 0.0))


def test_a_trace_of_a_gpu_by_others_is_read():
    """Of an MI250: github.com/facebookresearch/HolisticTraceAnalysis, f4d0062c38, tests/data/amd_trace, MIT License."""
    profile = read_profile(TRACE)
    events = json.loads(gzip.decompress(TRACE.read_bytes()))["traceEvents"]
    lasting = [e["dur"] for e in events if e.get("cat") in {"kernel", "gpu_memcpy", "gpu_memset"}]
    assert sum(profile.kernels.values()) == pytest.approx(1e-6 * sum(lasting), rel=1e-3)  # the second mark is empty
    kernels = [event for event in events if event.get("cat") == "kernel"]
    launching = {kernel["args"]["External id"] for kernel in kernels if kernel["name"].startswith("Cijk_")}
    products = [kernel["dur"] for kernel in kernels if kernel["args"]["External id"] in launching]
    assert profile.kernels["product"] == pytest.approx(1e-6 * sum(products), rel=1e-3)
    assert {"optimizer", "element-wise", "movement"} <= profile.kernels.keys()
    assert "other" not in profile.kernels


def write_export(path, kernels, *more):
    """Write the tables of an export of Nsight Systems that are read, as its documentation has them, then change it."""
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL)")
    columns = "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER"
    database.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({columns}, demangledName INTEGER, shortName INTEGER)")
    database.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY ({columns}, bytes INTEGER, copyKind INTEGER)")
    for number, (begin, end, device, name) in enumerate(kernels):
        database.execute("INSERT INTO StringIds VALUES (?, ?)", (number, name))
        row = (begin, end, device, 7, number, number, number)
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (900, 1000, 0, 7, 1, 8, 1)")
    for change in more:
        database.execute(change)
    database.commit()
    database.close()
    return path


ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS id, 'gemm' AS value FROM n"
AS_OFTEN = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 99999)"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (("DROP TABLE StringIds", f"CREATE VIEW StringIds AS {ENDLESS}"), "no table"),
        (("UPDATE StringIds SET value = hex(zeroblob(1 << 16))",), "string or blob too big"),
        (("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'a'", "DELETE FROM CUPTI_ACTIVITY_KIND_MEMCPY"), "no kernels"),
        ((f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL {AS_OFTEN} SELECT 1, 2, 0, 7, 0, 0, 0 FROM n",), "interrupted"),
    ],
)
def test_exports_beyond_all_bounds(tmp_path, monkeypatch, changes, says):
    monkeypatch.setattr("planner.report.profiles.profile.MOST_STEPS", 10**5)
    with pytest.raises(ProfileError, match=says):
        read_profile(write_export(tmp_path / "report.sqlite", [(0, 400, 0, "gemm")], *changes))


def test_exports_of_nsight_systems_are_read_in_the_mean_over_devices(tmp_path):
    kernels = [
        (0, 400, 0, "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm>"),
        (0, 200, 1, "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm>"),
        (300, 800, 0, "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096>)"),
    ]
    profile = read_profile(write_export(tmp_path / "report.sqlite", kernels), steps=2)
    assert profile.kernels == pytest.approx({"product": 150e-9, "movement": 25e-9})
    assert profile.collectives == pytest.approx({"all-gather": 125e-9})
    assert (profile.seconds, profile.exposed_s, profile.idle_s) == pytest.approx((500e-9, 100e-9, 225e-9))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "truncated"),
        (b'{"traceEvents": []}', "expected kernels or operators, found none"),
        (b"\x1f\x8b\x08", "Compressed file ended"),
        (gzip.compress(b" " * (1 << 29) + b"{}", 1), "expected at most 536870912 bytes"),
        (b"SQLite format 3\0", "not an export of Nsight Systems"),
    ],
)
def test_what_is_no_profile_is_refused_by_name(tmp_path, content, message):
    (tmp_path / "trace").write_bytes(content)
    with pytest.raises(ProfileError, match=rf"trace: .*{message}"):
        read_profile(tmp_path / "trace")


SPANS = st.lists(
    st.builds(
        lambda begin, length, what: Timespan(float(begin), float(begin + length), what),
        st.integers(0, 50), st.integers(0, 20), st.sampled_from(["product", "movement", f"{COLLECTIVE}all-reduce"]),
    ),
    max_size=12,
)  # fmt: skip


@given(SPANS)
def test_every_moment_is_of_kernels_exposed_or_idle(spans):
    """Beside a count of moments, one by one."""
    profile = profile_of([spans], 0.0, 60.0, 1)
    at = [{span.what for span in spans if span.begin_s <= moment < span.end_s} for moment in range(60)]
    computing = [any(not what.startswith(COLLECTIVE) for what in running) for running in at]
    assert profile.exposed_s == sum(bool(running) and not on for running, on in zip(at, computing, strict=True))
    assert profile.idle_s == sum(not running for running in at)
    assert profile.collectives.get("all-reduce", 0.0) == sum(f"{COLLECTIVE}all-reduce" in running for running in at)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::mm", "product"), ("aten::baddbmm", "product"), ("aten::_scaled_mm", "product"),
        ("aten::mean", "reduction"),
        ("aten::convolution_backward", "product"), ("aten::_log_softmax_backward_data", "reduction"),
        ("aten::maximum", None), ("aten::max", "reduction"), ("aten::native_layer_norm_backward", "normalization"),
        ("aten::_to_copy", "movement"), ("aten::embedding_dense_backward", "movement"), ("aten::mul", None),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention"), ("fsdp::chunk_cat", "movement"),
        ("attention", None), ("c10d::allreduce_", None),
    ],
)  # fmt: skip
def test_classes_of_operators(name, kind):
    assert class_by(OPERATORS, name) == kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("void flash_fwd_kernel<Flash_fwd_kernel_traits>", "attention"), ("nvjet_tst_128x256", "product"),
        ("triton_red_fused__softmax_3", "reduction"), ("triton_poi_fused_add_2", "element-wise"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel", "optimizer"),
        ("vectorized_layer_norm_kernel", "normalization"), ("my_kernel", None),
    ],
)  # fmt: skip
def test_classes_of_kernels(name, kind):
    assert class_by(KERNELS, name) == kind
    assert collective_of(name) is None


def test_every_node_of_a_training_graph_has_a_class():
    graph = planner.model(
        "transformer-2-32", batch=2, sequence=16, heads=2, vocabulary=64, optimizer="adam", flash=True
    )
    classes = kernel_classes(graph)
    assert classes.keys() == {node.name for node in graph.nodes}
    assert {"product", "attention", "normalization", "optimizer"} <= set(classes.values())
    updated = {node.name for node in graph.nodes if set(node.outputs) & set(graph.updates.values())}
    assert {classes[name] for name in updated} == {"optimizer"}


@pytest.fixture
def predicted(tmp_path):
    """A prediction with tasks of a perceptron on two workers."""
    plan, machine = search_plan(planner.model("mlp-2-64", batch=8), 2), load_topology("uniform-2")
    simulation = simulation_of(plan_program(plan, machine, 1), Settings())
    write_reports(tmp_path / "predicted.json", report(plan, "plan.json", simulation, {}, tasks=True))
    return tmp_path / "predicted.json"


def test_parts_of_a_prediction_are_the_whole_step(predicted):
    parts = predicted_parts(predicted)
    assert sum(of for name, of in parts.items() if name != STEP) == pytest.approx(parts[STEP], rel=1e-3)
    assert set(parts) <= {*CLASSES, EXPOSED, IDLE, STEP}


def test_the_largest_difference_comes_first(predicted, tmp_path):
    profile = read_profile(write_trace(tmp_path / "trace.json.gz", ON_CPU))
    table, *_, sentence = beside_profile(predicted, profile)
    parts, before = measured_parts(profile), predicted_parts(predicted)
    first, *_, last = table.columns[0].cells
    assert last == STEP
    assert first == max(parts.keys() - {STEP}, key=lambda name: abs(parts[name] - before.get(name, 0.0)))
    assert sentence.endswith(f"the largest difference is in {first}")


def test_what_has_no_tasks_says_what_to_do(predicted, tmp_path):
    stripped = json.loads(predicted.read_text()) | {"tasks": []}
    (tmp_path / "stripped.json").write_text(json.dumps(stripped))
    with pytest.raises(
        ReportError, match="the file has no prediction with tasks; create one with simulate --tasks --json"
    ):
        predicted_parts(tmp_path / "stripped.json")


def test_the_command_lays_several_ranks_beside_one_prediction(predicted, tmp_path, capsys):
    trace = write_trace(tmp_path / "trace.json.gz", ON_CPU)
    assert run(compare_command, predicted, "--profile", trace, "--profile", trace) == 0
    assert "all-reduce" in capsys.readouterr().out
    assert run(compare_command, predicted, predicted, "--profile", trace) == 2
