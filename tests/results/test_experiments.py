"""The experiments' pages and the README's figures are made from the data that is there, and say nothing else."""

from __future__ import annotations

import re
from importlib import import_module

import pytest

from results import __main__ as command, figures
from results.experiment import ROOT, contents, read_data
from results.pytorch_models.run import examples

FIGURE = re.compile(r"(?<![A-Za-z\d])(\d[\d,.]*)\s?(?:%|[GM]i?B|s|seconds|minutes|hours|times)(?!\w)")
PUBLISHED = "".join(path.read_text() for path in (ROOT / "results").glob("*/published.json"))


def test_every_folder_is_an_experiment():
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


def test_the_figures_of_the_readme():
    for file, content in contents(ROOT, figures.pages()).items():
        assert (ROOT / file).read_text() == content, f"{file}: run python -m results --pages"


def test_every_example_is_measured():
    measured = read_data(ROOT / "results" / "pytorch_models")["examples"]
    assert [row["model"] for row in measured] == list(examples())


def test_an_unknown_name(capsys):
    with pytest.raises(SystemExit, match="2"):
        command.main(["search-space"])
    assert "no experiment search_space: expected some of " in capsys.readouterr().err
