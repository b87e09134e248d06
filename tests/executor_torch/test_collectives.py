"""Transfers as operations of PyTorch's on ranks of torchrun: the planned bytes, and results equal but for rounding."""

import random

import pytest

pytest.importorskip("torch")

from executor.cluster import single_rank
from executor.transport import TransportError
from planner.layout import Ways
from planner.planning import plan as search
from planner.program.lower import lower
from planner.program.tasks import Receive
from planner.report.schema import read_reports
from tests.cross.cases import Case, graph
from tests.cross.random_plans import random_plan
from tests.executor_torch.test_torchrun import own_lines, run

WAYS = {2: [Ways((2,)), Ways((2,), (3, 1))], 4: [Ways((2, 2)), Ways((2, 2), (1, 2, 2, 1))]}


FIVE = {"all-gather", "reduce-scatter", "all-to-all", "broadcast", "reduce"}
KINDS = {2: FIVE, 4: {*FIVE, "all-reduce"}}
"""What is among the drawn plans' transfers; of an all-reduce in one hop some of four ranks have one."""


def drawn(ranks, folder):
    """Plans by nobody, of equal and unequal parts, with partial sums and halos; and data parallelism, by its file."""
    plans = {}
    if ranks > 2:
        plans[folder / "stages.json"] = search(graph("mlp", "float64", "adam"), ranks, stages=2)
    for ways in WAYS[ranks]:
        for model in ("mlp", "cnn"):
            plan = random_plan(graph(model, "float64", "adam"), ways, random.Random(f"{model} {ways} on ranks"))
            plans[folder / f"{len(plans)}.json"] = plan
    plans[folder / "data-parallel.json"] = Case("mlp", (ranks,), "data-parallel", "S,R", "float64", "adam").plan()
    for path, plan in plans.items():
        plan.save(path)
    return plans


def kinds(plans):
    tasks = (task for plan in plans for task in lower(plan).workers[0].tasks if isinstance(task, Receive))
    return {task.collective.kind for task in tasks if task.collective is not None}


@pytest.mark.parametrize("ranks", WAYS)
def test_operations_do_what_messages_do(ranks, tmp_path):
    plans = drawn(ranks, tmp_path)
    assert kinds(plans.values()) >= KINDS[ranks]
    report = tmp_path / "report.json"
    common = ("--steps", 2, "--check", "--json", report)
    done = run(ranks, "executor", *plans, *common, "--collectives", "library")
    assert (done.returncode, own_lines(done)) == (0, []), done.stderr
    together = read_reports(report)
    apart = run(ranks, "executor", *plans, *common)
    assert apart.returncode == 0, apart.stderr
    for by_library, expected in zip(together, read_reports(report), strict=True):
        assert by_library.check.passed
        assert by_library.bytes == by_library.planned_bytes == expected.bytes
        assert by_library.arena_bytes == by_library.planned_arena_bytes
        assert by_library.losses == pytest.approx(expected.losses, rel=1e-12)
        assert (by_library.settings["collectives"], expected.settings.get("collectives")) == ("library", None)
    assert any("collectives" in item.what for by_library in together for item in by_library.outside_arena)


def test_ranks_that_have_messages_alone():
    ranks = single_rank(1)
    assert ranks.with_collectives("pairs") is ranks
    with pytest.raises(
        TransportError, match="collectives library: expected ranks of torchrun: use --collectives pairs"
    ):
        ranks.with_collectives("library")
