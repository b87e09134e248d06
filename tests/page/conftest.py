import dataclasses

import msgspec
import pytest

import planner
import simulator
from planner.report.schema import TaskSeconds
from tensor_partitioner.decision import decide
from tensor_partitioner.page import decision_content, plan_content, write
from tests.page.chromium import Chromium

MODEL, MACHINE, BATCH = "transformer-2-64", "uniform-4", 8


@pytest.fixture(scope="session")
def decision():
    return decide(MODEL, MACHINE, batch=BATCH, budget_s=120)


@pytest.fixture(scope="session")
def pipelined(decision):
    """The same with a pipeline first, whose page has a schedule and stages."""
    best = decision.best
    whole = best.stages[0]
    half = dataclasses.replace(whole, forward_s=whole.forward_s / 2, backward_s=whole.backward_s / 2)
    name = "pp=2,dp=2,micro-batch=1"
    first = msgspec.structs.replace(
        best, name=name, parallel=name, family="pipeline x data (DDP)", micro_batches=4, stages=(half, half)
    )
    others = [msgspec.structs.replace(row, why=row.why or "as fast") for row in decision.candidates]
    return msgspec.structs.replace(decision, candidates=(first, *others))


@pytest.fixture(scope="session")
def plan():
    return planner.plan(planner.model("transformer-2-64", batch=8), workers=4)


@pytest.fixture(scope="session")
def reports(plan):
    """A simulated report, and one as a run would write it: without links, with the seconds of tasks."""
    report = simulator.simulate(plan, "p2.8xlarge")
    nodes = [node.name for node in plan.graph.nodes[:40]]
    tasks = tuple(
        TaskSeconds(
            worker=worker, task=n, kind="wait" if n % 5 == 4 else "compute", what=name, seconds=1e-4 * (1 + n % 3)
        )
        for worker in range(plan.workers)
        for n, name in enumerate(nodes)
    )
    executed = msgspec.structs.replace(
        report, source="executor", seconds_per_step=2 * report.seconds_per_step, links=(), spending=(), tasks=tasks
    )
    return report, executed


@pytest.fixture(scope="session")
def pages(tmp_path_factory, decision, pipelined, plan, reports):
    """The paths of pages, by what they are of."""
    folder = tmp_path_factory.mktemp("pages")
    best = planner.plan(planner.model(MODEL, batch=BATCH), workers=4)
    write(decision_content(decision, machine=MACHINE, plan=best), folder / "decision.html")
    write(decision_content(pipelined, machine=MACHINE), folder / "pipeline.html")
    write(plan_content(plan, reports), folder / "plan.html")
    return {path.stem: path for path in sorted(folder.iterdir())}


@pytest.fixture(scope="session")
def chromium():
    browser = Chromium()
    yield browser
    browser.close()


@pytest.fixture
def browser(chromium):
    chromium.theme("light")
    chromium.size(900)
    return chromium
