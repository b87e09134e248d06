"""The experiments' pages and the README's figures are made from the data that is there, and say nothing else."""

from __future__ import annotations

import re
from importlib import import_module

import pytest

from results import __main__ as command
from results import figures
from results.experiment import ROOT, read_data

FIGURE = re.compile(r"(\d[\d,.]*)\s?(?:%|[GM]i?B|s|seconds|minutes|hours|times)(?!\w)")
PUBLISHED = "".join(path.read_text() for path in (ROOT / "results").glob("*/published.json"))


def test_there_are_experiments():
    assert len(command.EXPERIMENTS) > 10
    folders = {path.name for path in (ROOT / "results").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == set(command.EXPERIMENTS)


@pytest.mark.parametrize("name", command.EXPERIMENTS)
def test_pages_are_made_from_the_data(name):
    folder = ROOT / "results" / name
    pages = import_module(f"results.{name}.run").pages(read_data(folder))
    assert "README.md" in pages
    assert {path.name for path in folder.iterdir() if path.suffix in {".md", ".svg"}} == pages.keys()
    for file, content in pages.items():
        assert (folder / file).read_text() == content, f"{file}: run python -m results --pages {name}"


@pytest.mark.parametrize("name", sorted({*command.EXPERIMENTS} - {"operator_coverage"}))
def test_what_is_written_by_hand_holds_no_measured_figure(name):
    """`operator_coverage` has no page that is written by hand."""
    text = (ROOT / "results" / name / "README.md").read_text()
    by_hand = re.sub(r"<!-- ([\w-]+): generated -->.*?<!-- end of \1 -->", "", text, flags=re.DOTALL)
    assert by_hand != text
    assert [figure for figure in FIGURE.findall(by_hand) if not re.search(rf"\b{figure}\b", PUBLISHED)] == []


def test_a_measured_figure_is_found():
    assert FIGURE.findall("takes 1.5 s and 40% of 3 GB, 4 times") == ["1.5", "40", "3", "4"]
    assert FIGURE.findall("8 workers, 4 steps, Table 1") == []


def test_the_figures_of_the_readme():
    for file, content in figures.pages().items():
        assert (ROOT / file).read_text() == content, f"{file}: run python -m results --pages"


def test_names_may_have_hyphens(monkeypatch):
    measured = []
    monkeypatch.setattr(command, "measure", measured.append)
    monkeypatch.setattr(figures, "write", lambda: measured.append("figures"))
    assert command.main(["search-time", "table_2"]) == 0
    assert measured == ["search_time", "table_2", "figures"]


def test_an_unknown_name(capsys):
    assert command.main(["search-space"]) == 2
    assert "found search_space" in capsys.readouterr().err
