"""A class name stands for one thing in the whole product."""

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("tdl", "topologies", "planner", "simulator", "executor", "tensor_partitioner")

TWICE = {
    *("Backward", "Block", "Choice", "Cluster", "Exchange", "Job", "Kernel", "Link", "Memory", "Messages", "Part"),
    *("Priced", "Product", "Record", "Repeats", "Step", "Steps", "Tables", "Tile", "Transfer", "Update"),
    *("Window", "Work", "Worker", "_File"),
}
"""Names that occur more than once: this only shrinks."""


def classes(text):
    """The names of the classes that a module defines."""
    return [node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]


def test_classes_within_others_are_found():
    assert classes("class A:\n    class B: ...\ndef f():\n    class A: ...\n") == ["A", "B", "A"]


def test_no_class_name_occurs_twice():
    paths = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    counts = Counter(name for path in paths for name in classes(path.read_text()))
    assert {name for name, count in counts.items() if count > 1} == TWICE
