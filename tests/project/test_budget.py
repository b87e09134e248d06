"""A budget of code per package: lower it when code has gone, and raise one only where another goes down by more."""

import ast
import io
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUDGETS = {
    "tensor_partitioner": 5288,
    "tdl": 2670,
    "topologies": 1882,
    "planner": 18792,
    "simulator": 3328,
    "executor": 7770,
}
"""Lines that are neither blank, comment, docstring nor import, by package."""

ALL = 39_730
"""Of all packages together, which only goes down."""

BESIDE = {"results": 12_991, "tests": 33_322}
"""Of experiments and tests."""

FILES = 300
"""Python files of the product: one more is merged with another, or takes another's place."""

LAYOUT = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT, tokenize.ENDMARKER}


def code_lines(text):
    """Count the lines of code of a module."""
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in LAYOUT
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(ast.parse(text)):
        is_text = (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
        if is_text or isinstance(node, ast.Import | ast.ImportFrom):
            lines -= set(range(node.lineno, node.end_lineno + 1))
    return len(lines)


def test_lines_are_counted_as_said():
    assert code_lines('"""Says."""\n\nimport os\n\n# why\nX = (\n    1,\n)\n"""Of X."""\n') == 3


@pytest.mark.parametrize("package", [*BUDGETS, *BESIDE])
def test_a_package_keeps_to_its_budget(package):
    lines = sum(code_lines(path.read_text()) for path in sorted((ROOT / package).rglob("*.py")))
    assert lines <= (BUDGETS | BESIDE)[package], f"{package} has {lines} lines of code: take away what it adds"


def test_budgets_are_within_that_of_all():
    assert sum(BUDGETS.values()) <= ALL


def test_the_product_keeps_to_its_files():
    count = sum(1 for package in BUDGETS for _ in (ROOT / package).rglob("*.py"))
    assert count <= FILES, f"{count} files: merge those that have one reader"
