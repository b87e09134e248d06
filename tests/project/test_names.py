"""Names say what a value is: words that fit any value are nobody's."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EMPTY = {"found", "one", "made"}
PACKAGES = ("planner", "simulator", "executor", "topologies", "tdl", "tensor_partitioner")


def names_of(tree):
    """Every name that a module gives to a value, an argument, a function or a class, and its line."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()):
                yield name, node.lineno
            case ast.arg(arg=name) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name, node.lineno
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node.lineno
            case ast.alias(asname=str(name)):
                yield name, 0


@pytest.mark.parametrize("folder", [*PACKAGES, "results", "examples", "tests"])
def test_no_name_fits_every_value(folder):
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    named = [
        f"{file.relative_to(ROOT)}:{line}: {name}"
        for file in files
        for name, line in names_of(ast.parse(file.read_text(encoding="utf-8")))
        if name.strip("_").lower() in EMPTY or file.stem in EMPTY
    ]
    assert not named, "\n".join(named)


def test_what_is_looked_for():
    source = "import a as found\ndef one(made): ...\nfor _found in ONE: ...\n(ONE := 1)\nclass Found: ...\nx.one = made"
    assert {name for name, _ in names_of(ast.parse(source))} == {"found", "one", "made", "_found", "ONE", "Found"}
