"""The experiments' pages and the README's figures are made from the data that is there, and say nothing else."""

from __future__ import annotations

import random
import re
import time
from importlib import import_module

import pytest

import planner
from results import __main__ as command, figures
from results.default_plans import measure
from results.default_plans.run import CASES, beaten, case
from results.experiment import (
    ROOT,
    OverTimeError,
    Within,
    beside_recursive,
    contents,
    cpu_limit,
    in_fork_within,
    read_data,
)
from results.pytorch_models.run import examples

QUICK_S = 2.0
"""Seconds of all searches of a case that is searched again."""

FIGURE = re.compile(r"(?<![A-Za-z\d])(\d[\d,.]*)\s?(?:%|[GM]i?B|s|seconds|minutes|hours|times)(?!\w)")
PUBLISHED = "".join(path.read_text() for path in (ROOT / "results").glob("*/published.json"))


def test_there_are_experiments():
    assert len(command.EXPERIMENTS) > 10
    folders = {path.name for path in (ROOT / "results").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == set(command.EXPERIMENTS)


@pytest.mark.parametrize("name", command.EXPERIMENTS)
def test_pages_are_made_from_the_data(name):
    folder = ROOT / "results" / name
    pages = contents(folder, import_module(f"results.{name}.run").pages(read_data(folder)))
    assert {path.name for path in folder.iterdir() if path.suffix in {".md", ".svg"}} == pages.keys()
    for file, content in pages.items():
        assert (folder / file).read_text() == content, f"{file}: run python -m results --pages {name}"


@pytest.mark.parametrize("name", command.EXPERIMENTS)
def test_what_is_written_by_hand_holds_no_measured_figure(name):
    text = (ROOT / "results" / name / "README.md").read_text()
    by_hand = re.sub(r"<!-- ([\w-]+): generated -->.*?<!-- end of \1 -->", "", text, flags=re.DOTALL)
    assert by_hand != text
    assert [figure for figure in FIGURE.findall(by_hand) if not re.search(rf"\b{figure}\b", PUBLISHED)] == []


def test_a_measured_figure_is_found():
    assert FIGURE.findall("takes 1.5 s and 40% of 3 GB, 4 times; of 72 GB200s") == ["1.5", "40", "3", "4"]
    assert FIGURE.findall("8 workers, 4 steps, Table 1") == []


def test_the_figures_of_the_readme():
    for file, content in contents(ROOT, figures.pages()).items():
        assert (ROOT / file).read_text() == content, f"{file}: run python -m results --pages"


def default_plans():
    return read_data(ROOT / "results" / "default_plans")["rows"]


def test_no_alternative_beats_a_default_plan():
    rows = default_plans()
    assert {case(row) for row in rows} <= set(CASES)
    assert all(
        [(alternative["search"], alternative["placements"]) for alternative in row["alternatives"]]
        == measure.alternatives()
        for row in rows
    )
    assert beaten(rows) == []


def test_an_alternative_that_beats_a_default_plan_is_found():
    row = default_plans()[0]
    worse = row | {
        "default": row["default"] | {"bytes": 1 + min(alternative["bytes"] for alternative in row["alternatives"])}
    }
    assert beaten([worse])[0][0] == worse


@pytest.mark.parametrize("number", range(3))
def test_default_plans_are_found_again(number):
    quick = [
        row
        for row in default_plans()
        if sum(searched["seconds"] for searched in [row["default"], *row["alternatives"]]) < QUICK_S
    ]
    row = random.Random(0).sample(quick, 3)[number]
    graph = planner.model(row["model"], batch=row["batch"])
    plan = planner.plan(graph, workers=row["workers"])
    assert plan.total_bytes == row["default"]["bytes"]
    ways = [tried.ways for tried in plan.search.factorisations]
    for alternative in row["alternatives"]:
        again = measure.measure(graph, ways, alternative["search"], alternative["placements"], seconds=100.0)
        assert plan.total_bytes <= again["bytes"] == alternative["bytes"], (case(row), alternative)


def test_the_cpu_seconds_of_a_block_are_limited():
    started = time.process_time()
    with pytest.raises(OverTimeError), cpu_limit(0.01):
        work_until(started + 10.0)
    with cpu_limit(10.0):
        work_until(time.process_time() + 0.02)


def work_until(process_s):
    while time.process_time() < process_s:
        pass


def test_a_fork_returns_what_it_finds_or_nothing_where_it_takes_too_much_and_raises_what_fails():
    def spin():
        while True:
            pass

    within = Within(1, 64 << 30)
    assert in_fork_within(within, sum, [1, 2]) == 3
    assert in_fork_within(within, spin) is None
    assert in_fork_within(within, bytearray, 65 << 30) is None
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        in_fork_within(within, lambda: 1 // 0)


def test_joint_is_nowhere_worse_than_the_recursion_by_default():
    compared = set()
    for rows in read_data(ROOT / "results" / "search_time")["rows"].values():
        default = {(row["workers"], row["placements"]): row["plan_bytes"] for row in rows if row["graph"] == "default"}
        for row in (row for row in rows if row["search"] == "joint" and "over" not in row):
            assert row["plan_bytes"] <= default[row["workers"], row["placements"]], row
            compared.add((row["model"], row["workers"], row["placements"]))
    assert len(compared) == 3 * 3 * 2 - 4  # as many searches ran over their memory


def test_joint_beside_the_recursion_is_told():
    said = beside_recursive({"a": (9, 10), "b": (10, 10), "c": (11, 10)}, "`recursive`")
    assert "1 move fewer bytes" in said
    assert "(by up to 10.0%), 1 as many, and 1 more: c (10.0% more)." in said


def test_toulbar2_agrees_wherever_it_ended():
    rows = read_data(ROOT / "results" / "certificate")["rows"]
    ended = [row for row in rows if "over" not in row["toulbar2"]]
    assert {36_864_304_696, 58_274_275_384, 4_094_219_832} <= {row["toulbar2"]["bytes"] for row in ended}
    assert all(row["toulbar2"]["bytes"] == row["joint"]["bytes"] == row["joint"]["bound"] for row in ended)


def test_every_example_is_measured():
    measured = read_data(ROOT / "results" / "pytorch_models")["examples"]
    assert [row["model"] for row in measured] == list(examples())


def test_names_may_have_hyphens(monkeypatch):
    measured = []
    monkeypatch.setattr(command, "measure", measured.append)
    monkeypatch.setattr(command, "write_pages", lambda folder, _: measured.append(folder))
    assert command.main(["search-time", "table_2"]) == 0
    assert measured == ["search_time", "table_2", ROOT]


def test_an_unknown_name(capsys):
    with pytest.raises(SystemExit, match="2"):
        command.main(["search-space"])
    assert "no experiment search_space: expected some of " in capsys.readouterr().err
