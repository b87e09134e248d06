"""How many lines each description has: from `def` to its end without the docstring, or those of its table's row."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

TABLES = {"PLAIN", "ARITHMETIC", "UNARY", "BINARY", "SCALAR", "MASKS", "BITS", "LOSSES"}
"""Tables whose rows are descriptions: a row makes an operator and, where it has slopes, the operator's backward."""

NAMED = 1
"""Lines of a description that is a function's name in a table."""


def description_lines(folder: Path, operators: Iterable[str]) -> dict[str, int]:
    """Lines of the descriptions in a folder, by operator."""
    lengths: dict[str, int] = {}
    for path in sorted(folder.glob("*.py")):
        tree = ast.parse(path.read_text())
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        lengths |= {node.name.rstrip("_"): _span(node) for node in functions if node.decorator_list}
        lengths |= dict(_rows(tree, {node.name: _span(node) for node in functions if not node.decorator_list}))
    return {name: lengths.get(name) or lengths.get(name.removesuffix("_backward"), NAMED) for name in operators}


def _rows(tree: ast.Module, functions: dict[str, int]) -> Iterator[tuple[str, int]]:
    """Yield every row's name and lines, with those of the functions of the module that it names."""
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) in TABLES and isinstance(node.value, ast.Dict):
            for key, value in zip(node.value.keys, node.value.values, strict=True):
                if key is None:
                    continue
                named = {part.id for part in ast.walk(value) if isinstance(part, ast.Name)} & functions.keys()
                lines = (value.end_lineno or 0) - value.lineno + 1
                yield ast.literal_eval(key), lines + sum(functions[name] for name in named)


def _span(node: ast.FunctionDef) -> int:
    told = node.body[0] if ast.get_docstring(node) is not None else None
    docstring = (told.end_lineno or 0) - told.lineno + 1 if told else 0
    return (node.end_lineno or 0) - node.lineno + 1 - docstring
