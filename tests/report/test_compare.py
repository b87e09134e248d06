"""The comparison: verdicts per pair, seconds of different machines apart, and the tables as printed."""

import io
import json
import re

import msgspec
import pytest
from rich.console import Console

from planner.report.compare import bytes_table, compare, fastest, memory_table, notes, ranking_table, task_tables
from planner.report.schema import (
    Bottleneck,
    BufferUse,
    CheckResult,
    DeviceMemory,
    LinkUse,
    OutsideArena,
    ReportError,
    Spending,
    TaskSeconds,
)
from planner.report.tables import byte_matrix, devices, finding, links, seconds, summary, tables
from tensor_partitioner.commands.compare import main as compare_command
from tensor_partitioner.commands.decide import main as decide
from tests.project.test_plan_command import run as run_command


def render(*tables):
    text = io.StringIO()
    console = Console(width=200, color_system=None, file=text)
    for table in tables:
        console.print(table)
    return text.getvalue()


def replace(report, **changes):
    return msgspec.structs.replace(report, **changes)


@pytest.fixture
def run(report):
    return replace(
        report,
        source="executor",
        machine="laptop",
        seconds_per_step=0.5,
        seconds_without_communication=None,
        planned_arena_bytes=(256, 320),
    )


def test_equal_bytes(report, run):
    (comparison,) = compare([report, run])
    assert comparison.values((0, 1)) == (12, 12, 12)
    lines = render(bytes_table(comparison)).splitlines()
    (total,) = (line for line in lines if "total" in line)
    assert total.count("16") == 3
    assert "2 of 2 equal" in total


def test_one_different_byte_is_unequal(report, run):
    (comparison,) = compare([report, replace(run, bytes=((0, 12), (5, 0)))])
    assert comparison.unequal_pairs == ((1, 0),)
    text = render(bytes_table(comparison))
    assert "1 of 2 UNEQUAL" in text
    (pair,) = (line for line in text.splitlines() if "1 to 0" in line)
    assert "UNEQUAL" in pair


def test_a_misread_plan_is_unequal(report, run):
    (comparison,) = compare([report, replace(run, planned_bytes=((0, 12), (8, 0)))])
    assert comparison.unequal_pairs == ((1, 0),)
    assert "plan as read by the executor" in render(bytes_table(comparison))


def test_many_workers_are_shown_by_sender(report, run):
    matrix = tuple(tuple(0 if u == w else 10 * u + w for w in range(8)) for u in range(8))
    wide = {"workers": 8, "ways": (8,), "planned_bytes": matrix, "bytes": matrix, "arena_bytes": (1,) * 8}
    report, run = replace(report, **wide), replace(run, **wide, planned_arena_bytes=())
    text = render(bytes_table(*compare([report, run])))
    assert "from 7" in text
    assert "7 to 0" not in text
    assert "7 to 0" in render(bytes_table(*compare([report, run]), every_pair=True))
    wrong = tuple(tuple(x + (u == 7 and w == 0) for w, x in enumerate(row)) for u, row in enumerate(matrix))
    text = render(bytes_table(*compare([report, replace(run, bytes=wrong)])))
    assert "7 to 0" in text
    assert "1 of 56 UNEQUAL" in text


def rows(*reports):
    """The table of reports as text, a list of cells a row."""
    lines = render_wide(ranking_table(compare(reports))).splitlines()
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]


def render_wide(*tables):
    text = io.StringIO()
    Console(width=1000, color_system=None, file=text).print(*tables)
    return text.getvalue()


def test_a_row_for_every_report_the_best_marked(report):
    slow = replace(report, plan="slow.json", seconds_per_step=0.375, bytes=((0, 24), (8, 0)))
    slow = replace(slow, planned_bytes=slow.bytes)
    first, second = rows(report, slow)
    assert first[:4] == ["plan.json", "simulated on pair", "250 ms", "best"]
    assert second[2:4] == ["375 ms", "1.5 x"]
    assert (first[6:8], second[6:8]) == (["16", "best"], ["32", "2 x"])
    assert first[-1] == second[-1] == "2 of 2 equal"
    assert fastest(compare([report, slow])).startswith("plan.json is the fastest, simulated on pair: 250 ms a step")
    assert "slow.json takes 50.0% longer" in fastest(compare([report, slow]))
    assert fastest(compare([report])) == ""


def test_what_does_not_fit_is_not_the_best(report):
    gpu = {"device": "gpu0", "workers": (0, 1), "peak_bytes": 12_000_000_000, "capacity_bytes": 11_000_000_000}
    full = replace(report, plan="full.json", devices=(DeviceMemory(**gpu, verdict="out of memory"),))
    slow = replace(report, plan="slow.json", seconds_per_step=0.5)
    first, second = rows(full, slow)
    assert (first[3], first[-2]) == ("0.5 x", "OUT OF MEMORY")
    assert second[3] == "best"


def test_seconds_of_two_machines_or_kinds_are_not_compared(report, run):
    measured_here = replace(run, machine="pair", seconds_per_step=1.0)
    other_work = replace(report, plan="other.json", batch=64, seconds_per_step=0.001)
    assert [row[4] for row in rows(report, run, measured_here, other_work)] == ["-"] * 4


def test_a_simulation_is_in_proportion_to_the_run(report, run):
    run = replace(run, seconds_per_step=0.5)
    here = replace(run, machine=report.machine, seconds_per_step=0.125)
    slow = replace(report, settings={"overlap": False}, seconds_per_step=0.375)
    assert [row[2:5] for row in rows(report, run)] == [["250 ms", "0.5 x", "-"], ["500 ms", "-", "-"]]
    assert [row[3] for row in rows(report, slow, run, here)] == ["2 x", "3 x", "-", "-"]
    assert [row[4] for row in rows(report, slow, run, here)] == ["best", "1.5 x", "-", "-"]
    assert [row[3] for row in rows(report, slow)] == ["best", "1.5 x"]
    assert {row[8] for row in rows(report, run)} == {"-"}


def test_two_predictions_for_one_machine_say_their_settings(report):
    other = replace(report, seconds_per_step=0.125, settings={"prefetch": 0})
    first, second = rows(report, other)
    assert second[1] == "simulated on pair (prefetch 0)"
    assert [first[3], second[3]] == ["2 x", "best"]


def test_unequal_bytes_are_in_the_row(report, run):
    assert [row[-1] for row in rows(report, replace(run, bytes=((0, 12), (5, 0))))] == [
        "2 of 2 equal",
        "1 of 2 UNEQUAL",
    ]


def test_a_sentence_says_what_was_shown(report, run):
    said = finding(replace(report, samples_per_s=32.0))
    assert said.startswith("mlp-2-8 on pair with 2 workers: a step, simulated message by message, takes 250 ms (32 ")
    assert f"{100 * report.communication_share:.1f}% of it exposed communication" in said
    done = finding(replace(run, losses=(2.0, 1.5, None), samples_per_s=None))
    assert "a step took 500 ms; the loss went from 2 to 1.5 in 3 steps; exactly the planned bytes moved, 16" in done
    assert "OTHER bytes than planned moved" in finding(replace(run, bytes=((0, 12), (5, 0))))


@pytest.mark.parametrize(
    ("by_kind", "first"),
    [
        ({"weights": 9e9, "optimizer state": 2e9, "activations": 1e9}, "more workers, or sharded state"),
        ({"weights": 1e9, "activations": 11e9}, "a smaller batch or --micro-batches, --recompute"),
    ],
)
def test_what_would_help_where_memory_is_too_small(report, by_kind, first):
    gpu = {"device": "gpu0", "workers": (0,), "peak_bytes": 12_000_000_000, "capacity_bytes": 11_000_000_000}
    full = DeviceMemory(**gpu, verdict="out of memory", by_kind={kind: int(n) for kind, n in by_kind.items()})
    said = finding(replace(report, devices=(full,)))
    assert f"it does not fit: gpu0 needs 12 GB but has 11 GB, 1 GB too little; try {first}" in said


def test_plans_are_kept_apart(report, run):
    first, second = compare([report, replace(run, plan="other.json")])
    assert (first.plan, second.plan) == ("plan.json", "other.json")
    assert notes(first) == ["plan.json: only one report, compared with its plan"]


def test_different_plans_of_one_name_are_refused(report, run):
    with pytest.raises(ReportError, match=r"plan\.json: searcher is 'recursive'.*'joint'"):
        compare([report, replace(run, searcher="joint")])


def test_summary_says_what_matters(report):
    device = DeviceMemory(
        device="gpu0",
        workers=(0, 1),
        peak_bytes=12_000_000_000,
        capacity_bytes=11_000_000_000,
        verdict="out of memory",
        by_kind={"weights": 5_000_000, "reserve": 11_995_000_000},
        largest=(BufferUse(name="w", worker=0, nbytes=5_000_000),),
    )
    full = replace(
        report,
        devices=(device,),
        links=(LinkUse(name="gpu0->switch", nbytes=16, utilisation=0.75),),
        outside_arena=(OutsideArena(what="BLAS workspace"),),
        losses=(2.0, None),
        accuracy=0.5,
        check=CheckResult(passed=False, tensors=3, worst_tensor="w", worst_difference=None, tolerance=1e-4),
    )
    text = render(summary(full), devices(full), links(full))
    memory = ("OUT OF MEMORY on", "12 GB", "reserve 12 GB, weights 5 MB", "BLAS workspace")
    for part in (*memory, "75.0%", "not finite", "FAILED", "50.0%", "16 (equal to the plan)"):
        assert part in text
    assert "differs from one worker at w" in " ".join(notes(*compare([full])))


def test_the_bottleneck_is_what_is_busy_for_most_of_the_step(report):
    busy = replace(report, compute_seconds=(0.1, 0.2), links=(LinkUse(name="a->b", nbytes=16, utilisation=0.75),))
    assert "computing on worker 1, busy for 80.0% of the step" in render(summary(busy))
    assert "link a->b, busy for 75.0%" in render(summary(replace(busy, compute_seconds=(0.1, 0.125))))
    idle = replace(report, compute_seconds=(0.01, 0.02))
    assert "waiting: nothing is busy for half of the step" in render(summary(idle))
    assert "bottleneck" not in render(summary(replace(busy, source="executor")))


def test_bottlenecks_of_phases_are_named(report):
    bottleneck = Bottleneck(phase="backward", worker=1, begin_s=0.05, end_s=0.2, kind="wire", seconds=0.1, name="a->b")
    text = render(summary(replace(report, bottlenecks=(bottleneck,))))
    assert "bottleneck of backward" in text
    assert "wire on a->b: 100 ms of 150 ms, worker 1" in text


def test_what_workers_spend_the_step_on(report):
    parts = {"compute_s": 0.1, "copies_s": 0.02, "launches_s": 0.01, "wire_s": 0.05, "latency_s": 0.03}
    spending = Spending(worker=1, **parts, waiting_s=0.04, hidden_s=0.06)
    (row,) = [line for line in render(*tables(replace(report, spending=(spending,)))).splitlines() if "100 ms" in line]
    assert re.findall(r"(\d+) ms", row) == ["100", "20", "10", "50", "30", "40", "60"]


def test_byte_matrix(report):
    text = render(byte_matrix(report.bytes))
    assert "from worker" in text
    assert "16" in text
    wide = tuple(tuple(0 if u == w else 1 for w in range(17)) for u in range(17))
    assert "sent" in render(byte_matrix(wide))


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (0.0, "0 ns"), (2.5e-6, "2.5 us"), (0.0125, "12.5 ms"), (90.0, "90 s")]
)
def test_seconds(value, text):
    assert seconds(value) == text


def test_arenas_of_other_programs_may_differ(report, run):
    alike, other = replace(run, arena_bytes=(256, 384), planned_arena_bytes=(256, 384)), {"prefetch": 3}
    (comparison,) = compare([report, alike])
    assert "UNEQUAL" in render(memory_table(comparison))
    assert comparison.unequal_arenas
    text = render(memory_table(*compare([report, replace(alike, settings=other)])))
    assert "other prefetch" in text
    assert "UNEQUAL" not in text


def test_an_arena_other_than_predicted_is_wrong(report, run):
    (comparison,) = compare([report, replace(run, arena_bytes=(256, 384), settings={"prefetch": 3})])
    assert len(comparison.misallocated) == 1
    assert re.search("384 .* UNEQUAL", render(memory_table(comparison)))
    assert any("differ from the predicted size" in note for note in notes(comparison))


def tasks(*rows):
    """Tasks of worker 0: (position, kind, seconds), and of kernels the category."""
    return tuple(
        TaskSeconds(worker=0, task=task, kind=kind, what=f"thing {task}", seconds=taken, category="".join(category))
        for task, kind, taken, *category in rows
    )


def test_tasks_side_by_side(report, run):
    workers = report.workers
    predicted = tasks((0, "compute", 0.1 * workers, "matmul"), (1, "wait", 0.2 * workers), (2, "pack", 0.3 * workers))
    measured = tasks((0, "compute", 0.3 * workers, "matmul"), (1, "wait", 0.1 * workers), (3, "pack", 0.7 * workers))
    comparison = compare([replace(report, tasks=predicted), replace(run, tasks=measured)])[0]
    kinds, categories, far = map(render, task_tables(comparison))
    assert re.search(r"compute .* 100 ms .* 300 ms .* \+200 ms .* 3 ", kinds)
    assert re.search(r"wait .* 200 ms .* 100 ms .* -100 ms .* 0.5 ", kinds)
    assert re.search(r"pack .* 300 ms .* 700 ms .* \+400 ms ", kinds)
    assert re.findall(r"│ (\w+) ", categories) == ["matmul"]
    assert re.findall(r"│ (\d) ", far) == ["3", "2", "0", "1"]
    assert re.search(r"3 .* pack .* thing 3 .* 0 ns .* 700 ms", far)


def test_tasks_of_the_machine_that_was_measured_are_shown(report, run):
    elsewhere = replace(report, tasks=tasks((0, "compute", 7.0, "matmul")))
    here = replace(report, machine=run.machine, tasks=tasks((0, "compute", 2.0, "matmul")))
    measured = replace(run, tasks=tasks((0, "compute", 2.0, "matmul")))
    for predictions in ([elsewhere, here], [here, elsewhere]):
        shown = "".join(map(render, task_tables(compare([*predictions, measured])[0])))
        assert "7 s" not in shown
        assert f"simulated on {run.machine}" in shown


def test_tasks_must_be_there(report, run):
    with pytest.raises(ReportError, match="no report of the executor has tasks; create one with execute --tasks"):
        list(task_tables(compare([replace(report, tasks=tasks((0, "compute", 1.0))), run])[0]))


def test_decisions(tmp_path, capsys):
    """A row for each; the parts of a difference add up to it, and other assumptions are named."""
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    common = ("transformer-2-64", "--batch", 64, "--topo", "hgx-h100", "--pin", "tp=1", "--pin", "dp=8")
    assert run_command(decide, *common, "--json", first) == 0
    assert run_command(decide, *common, "--stack", "eager", "--dtype", "float32", "--json", second) == 0
    capsys.readouterr()
    assert run_command(compare_command, first, second) == 0
    said = capsys.readouterr().out
    steps = [json.loads(path.read_text())["candidates"][0]["seconds_per_step"] for path in (first, second)]
    assert f"{second} instead of {first}: +{seconds(float(f'{steps[1] - steps[0]:.3g}'))}: " in said
    assert all(seconds(step) in said for step in steps)
    assert "stack eager; instead of batch 64" in said
    assert run_command(compare_command, first) == 2
    assert "expected at least two decisions" in capsys.readouterr().err
    second.write_bytes(first.read_bytes())
    assert run_command(compare_command, first, second) == 0
    assert capsys.readouterr().out.endswith(f"{second} instead of {first}: no difference\n")
