"""What pages say, without a browser."""

import dataclasses
import itertools
import json
import re
import subprocess
import sys
from collections import Counter
from html import unescape

import msgspec
import pytest
from click.testing import CliRunner

import planner
import topologies
from planner.failures import describe_failure
from planner.report.schema import write_reports
from simulator.report import plan_program
from simulator.simulation import simulated
from tensor_partitioner.commands.report import main
from tensor_partitioner.decision.record import published_scores
from tensor_partitioner.page import decision_content, html, plan_content
from tensor_partitioner.page.decisions import cards_of, machine_inputs, shown
from tensor_partitioner.page.runs import RESOLUTION, SHOWN, run_part, schedule_lanes, simulated_lanes
from topologies.tree import machine_tree


def pipeline_of(pipelined, *, stages, micro_batches, schedule="1f1b"):
    """A candidate with equal stages, of a second forward and two backward."""
    stage = dataclasses.replace(pipelined.best.stages[0], forward_s=1.0, backward_s=2.0)
    parallel = f"pp={stages},schedule={schedule}"
    return msgspec.structs.replace(
        pipelined.best, parallel=parallel, micro_batches=micro_batches, stages=(stage,) * stages
    )


@pytest.mark.parametrize(
    ("schedule", "seconds"),
    [
        ("1f1b", lambda p, m: (m + p - 1) * 3),  # Narayanan and others, SC 2021, section 2.2
        ("gpipe", lambda p, m: (m + p - 1) * 3),
        ("interleaved:2", lambda p, m: m * 3 + (p - 1) * 3 / 2),  # the bubble is as many times smaller
    ],
)
@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 8), (4, 16)])
def test_schedules_take_what_closed_forms_say(pipelined, schedule, seconds, stages, micro_batches):
    timeline = schedule_lanes(pipeline_of(pipelined, stages=stages, micro_batches=micro_batches, schedule=schedule))
    assert timeline.seconds == pytest.approx(seconds(stages, micro_batches))
    assert list(timeline.lanes) == [f"stage {stage}" for stage in range(stages)]
    for spans in timeline.lanes.values():
        busy = sum(span.stop_s - span.start_s for span in spans)
        assert busy == pytest.approx(3 * micro_batches)
        assert all(before.stop_s <= after.start_s + 1e-12 for before, after in itertools.pairwise(spans))


def test_a_long_schedule_is_cut(pipelined):
    timeline = schedule_lanes(pipeline_of(pipelined, stages=8, micro_batches=4096))
    assert sum(map(len, timeline.lanes.values())) < 5000
    assert "of 4096 micro-batches" in timeline.note


def links_of(nodes):
    for node in nodes:
        if node.link:
            yield node
        yield from links_of(node.children)


@pytest.mark.parametrize("name", ["p2.8xlarge", "hgx-h100", "dgx-1-p100", "dgx-1-v100", "uniform-4"])
def test_every_link_stands_once(name):
    machine = topologies.load_topology(name)
    drawn = Counter(node.bandwidth for node in links_of(machine_tree(machine)))
    assert drawn == Counter(link.bandwidth_bytes_per_s for link in machine.links)


def devices_of(nodes, of=1):
    for node in nodes:
        many = of * node.alike
        if node.kind.startswith("h100"):
            yield many
        yield from devices_of(node.children, many)


def test_a_large_machine_is_drawn_once_for_all_nodes():
    tree = machine_tree(topologies.load_topology("hgx-h100-nodes-16"))
    assert len(list(links_of(tree))) < 20
    assert sum(devices_of(tree)) == 2 * 16 * 8  # under the switch of NVLinks, and under those of PCIe
    (network,) = (node for node in tree if node.name == "network")
    assert (network.children[0].alike, network.children[0].link) == (16, "8 x ib-ndr, 384 GB/s, 7 us")


def test_links_have_the_load_of_the_report(plan, reports):
    simulated = reports[0]
    nodes = list(links_of(plan_content(plan, reports).machine))
    assert max(node.load for node in nodes) == pytest.approx(max(link.utilisation for link in simulated.links))
    assert sum(node.nbytes for node in nodes) == sum(link.nbytes for link in simulated.links)


def test_figures_have_sources():
    machine = topologies.load_topology("hgx-h100")
    by_name = {given.name: given for given in machine_inputs(machine)}
    assert "NVIDIA, H100 data sheet" in by_name["peak_flop_per_s"].source
    assert by_name["launch_latency_s"].source == "assumed"
    assert "nvidia-smi" in by_name["memory_bytes"].source
    assert all(given.source for given in by_name.values() if given.about.startswith("device"))
    assert by_name["products: depth"].source.startswith("assumed: a tile starts")
    assert by_name["nvlink4-switch"].source.startswith("assumed")


def test_the_timeline_keeps_the_seconds_of_what_it_draws_together(plan):
    program = plan_program(plan, topologies.load_topology("p2.8xlarge"), 1)
    simulation = simulated(program.program, program.machine)
    timeline = simulated_lanes(simulation, plan.workers)
    assert timeline.seconds == simulation.seconds
    for worker, spans in enumerate(timeline.lanes.values()):
        assert len(spans) <= 2 * RESOLUTION
        drawn = sum(span.stop_s - span.start_s for span in spans if span.kind == "compute_s")
        assert drawn == pytest.approx(simulation.timeline.compute_s[worker], rel=0.1)


def test_a_page_has_the_records_that_are_saved(decision, plan, reports):
    pages = (decision_content(decision, plan=plan), plan_content(plan, reports))
    of_decision, of_plan = (embedded(html(page)) for page in pages)
    assert of_decision["decision"] == saved(shown(decision))
    assert shown(decision).candidates[0] == decision.best
    assert [row["name"] for row in of_decision["decision"]["candidates"]] == [row.name for row in decision.candidates]
    assert of_decision["plan"]["summary"] == saved(planner.summary(plan))
    for run, report in zip(of_plan["runs"], reports, strict=True):
        fields = saved(report)
        assert all(run[name] == fields[name] for name in SHOWN)
    assert of_plan["runs"][0]["spending"] == saved(reports[0])["spending"]


def test_where_a_report_lacks_it_spending_is_that_of_its_tasks(reports):
    by_worker = {spent.worker: spent for spent in run_part(reports[1])["spending"]}
    for worker, spent in by_worker.items():
        tasks = [task for task in reports[1].tasks if task.worker == worker]
        assert spent.compute_s == pytest.approx(sum(task.seconds for task in tasks if task.kind == "compute"))
        assert spent.wire_s == pytest.approx(sum(task.seconds for task in tasks if task.kind == "wait"))


def saved(record):
    """A record as it is written as JSON."""
    return json.loads(msgspec.json.encode(record))


def embedded(text):
    """The data of a page."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])


def test_text_of_a_model_ends_no_script(decision):
    name = "</script><script>alert(1)</script>&amp;"
    model = msgspec.structs.replace(decision.model, name=name)
    page = html(decision_content(msgspec.structs.replace(decision, model=model)))
    assert name not in page
    assert embedded(page)["decision"]["model"]["name"] == name


@pytest.fixture
def files(tmp_path, plan, reports, decision):
    plan.save(tmp_path / "plan.json")
    write_reports(tmp_path / "simulated.json", reports[0])
    write_reports(tmp_path / "executed.json", reports[1])
    (tmp_path / "decision.json").write_bytes(msgspec.json.encode(decision))
    return tmp_path


@pytest.mark.parametrize(
    ("names", "title"),
    [
        (("plan.json",), "is split over 4 workers"),
        (("executed.json", "plan.json", "simulated.json"), "is split over 4 workers"),
        (("decision.json",), "How to train"),
    ],
)
def test_report(files, names, title):
    output = files / "page.html"
    done = CliRunner().invoke(main.command, [*(str(files / name) for name in names), "-o", str(output)])
    assert (done.exit_code, done.exception) == (0, None)
    assert title in re.search("<title>(.*?)</title>", output.read_text())[1]


@pytest.mark.parametrize("kind", ["decision", "plan"])
def test_report_of_two_side_by_side(files, kind):
    """The table of key figures is in the HTML itself; both pages are whole."""
    first, second, output = files / f"{kind}.json", files / f"other-{kind}.json", files / "page.html"
    second.write_bytes(first.read_bytes())
    done = CliRunner().invoke(main.command, [str(first), str(second), "-o", str(output)])
    assert (done.exit_code, done.exception) == (0, None)
    assert f"{first}, {second}: no difference\n" in done.output
    head, *frames = output.read_text().split("<iframe")
    assert head.count(str(second)) >= 2
    assert head.count("One step" if kind == "decision" else "Bytes moved in a step") == 1
    single = files / "single.html"
    assert CliRunner().invoke(main.command, [str(first), "-o", str(single)]).exit_code == 0
    (title,) = re.findall("<title>.*?</title>", single.read_text())
    assert [unescape(frame).count(title) for frame in frames] == [1, 1]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("simulated.json",), "expected one plan with reports of it, or only decisions, or only plans, found report"),
        (("plan.json", "decision.json"), "expected one plan with reports of it, or only decisions"),
        (("plan.json", "plan.json"), "expected one plan with reports of it, or only decisions"),
        (("other.json",), "expected a plan, a report or a decision, found none of these"),
    ],
)
def test_report_refuses(files, names, message):
    (files / "other.json").write_text("{}")
    done = CliRunner().invoke(main.command, [str(files / name) for name in names], standalone_mode=False)
    assert message in describe_failure(done.exception)[0]
    assert describe_failure(done.exception)[1] == 2


def test_without_the_template_engine_one_line_says_what_to_install(files):
    code = (
        "import sys; sys.modules['jinja2'] = None\n"
        "from tensor_partitioner.commands.report import main\n"
        f"main([{str(files / 'plan.json')!r}])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=files)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "pip install 'tensor-partitioner[page]'" in done.stderr


@pytest.mark.parametrize(("times", "said"), [(1.0, "1.00 x"), (1.234, "1.23 x"), (12.34, "12.3 x")])
def test_how_many_times_as_long_has_three_digits(decision, times, said):
    best = decision.best
    slow = best.seconds_per_step * times
    name = "dp=4,zero=3,micro-batch=2"
    fields = {"name": name, "parallel": name, "family": "FSDP (ZeRO-3)", "seconds_per_step": slow}
    first = msgspec.structs.replace(best, family="tensor")
    rows = (first, msgspec.structs.replace(first, **fields))
    cards = {card[0]: card[1:] for card in cards_of(msgspec.structs.replace(decision, candidates=rows))}
    assert cards["FSDP (ZeRO-3)"] == (said, f"as long a step: {name}")


def test_a_decision_says_how_far_off_predictions_were(decision):
    text = html(decision_content(decision))
    for score in published_scores():
        assert f">{100 * score.mean:.1f}%</td>" in text
        assert f">{100 * score.bias:+.1f}%</td>" in text
