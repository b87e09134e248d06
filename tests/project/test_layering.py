"""The walls of the house, read from the imports of every file: statements, and strings that name a module."""

import ast
import graphlib
import importlib
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DISPLAY = "tensor_partitioner.display"
TOP = "tensor_partitioner"
PACKAGES = (TOP, "tdl", "topologies", "planner", "simulator", "executor", "results", "tests")
TESTS_OF_RESULTS = "tests.results"
"""Tests of experiments, the one place that may import both."""

HOUSE = {DISPLAY, "tdl", "topologies", "planner", "simulator", "executor", TOP}
MAY_IMPORT = {
    TESTS_OF_RESULTS: HOUSE | {"results", "tests", TESTS_OF_RESULTS},
    DISPLAY: {DISPLAY},
    "tdl": {"tdl"},
    "topologies": {DISPLAY, "topologies"},
    "planner": {DISPLAY, "tdl", "topologies", "planner"},
    "simulator": {DISPLAY, "tdl", "topologies", "planner", "simulator"},
    "executor": {DISPLAY, "tdl", "topologies", "planner", "executor"},
    TOP: HOUSE,
    "results": HOUSE | {"results"},
    "tests": HOUSE | {"tests"},
}
NEVER_IMPORT = {
    "planner.graph": ("planner.plans", "planner.search", "planner.program", "planner.report", "planner.explanations"),
    "planner.layout": ("planner.plans", "planner.search", "planner.program", "planner.report", "planner.explanations"),
    "planner.plans": ("planner.search", "planner.program", "planner.report", "planner.explanations"),
    "planner.search": ("planner.program", "planner.report", "planner.explanations"),
    "planner.program": ("planner.search", "planner.report", "planner.explanations"),
    "planner.report": ("planner.search", "planner.explanations"),
    "planner.export": ("planner.search", "planner.report"),
    "simulator": ("planner.search", "planner.explanations", "planner.planning"),
    "executor": ("planner.search", "planner.explanations", "planner.planning"),
}
"""Data flows one way: graph, plan, program, report. Reports do not search."""

SEARCH_FLOORS = ("costs", "coarse", "objectives", "solver")
"""Packages of `planner.search`, from the ground up; the searchers themselves stand above."""

ONLY_IN = {"simpy": "simulator", "mpi4py": "executor", "cupy": "executor"}
TORCH_ROOMS = ("planner.pytorch", "executor.torch")
"""Where PyTorch may be imported; nothing else imports these rooms, but by name when they are asked for."""

DOORS = {"executor.__main__": TOP}
"""A package's entry point for `python -m` belongs to the layer of commands."""


def module_name(path, root=ROOT):
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
MODULES = {module_name(path): path for path in FILES}
PRODUCT = {name: path for name, path in MODULES.items() if not name.startswith(("results", "tests"))}


def statements(tree):
    """Yield (module, line) of every import statement, those that only type checkers follow included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield (inner if inner in MODULES else node.module), node.lineno


def named(tree):
    """Yield (module, line) of every string that is the name of a module, as `import_module` is given it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "." in node.value:
            module = node.value.partition(":")[0]
            if module in PRODUCT:
                yield module, node.lineno


def imports(tree):
    yield from statements(tree)
    yield from named(tree)


def is_within(module, room):
    return f"{module}.".startswith(f"{room}.")


def layer_of(module):
    """Return the layer that a module belongs to, None for one that is not the project's."""
    module = DOORS.get(module, module)
    return next((layer for layer in MAY_IMPORT if is_within(module, layer)), None)


def in_torch_room(module):
    return any(is_within(module, room) for room in TORCH_ROOMS)


def breaches(module, tree):
    """Yield what a file imports through a wall."""
    layer = layer_of(module)
    for imported, line in imports(tree):
        where = f"{module}:{line} imports {imported}"
        room = layer_of(imported)
        if room is not None and room not in MAY_IMPORT[layer]:
            yield where
        for floor, forbidden in NEVER_IMPORT.items():
            if (
                is_within(module, floor)
                and module not in DOORS
                and any(is_within(imported, package) for package in forbidden)
            ):
                yield where
    if module in PRODUCT:
        for imported, line in statements(tree):
            top = imported.split(".")[0]
            if ONLY_IN.get(top, module.split(".")[0]) != module.split(".")[0]:
                yield f"{module}:{line} imports {imported}"
            if not in_torch_room(module) and (top == "torch" or in_torch_room(imported)):
                yield f"{module}:{line} imports {imported}"


def edges(trees):
    """Return what every module of the product imports, at any time: statements and names."""
    graph = {}
    for name, tree in trees.items():
        used = {module for module, _ in imports(tree) if module in PRODUCT}
        # Importing a.b.c runs a and a.b first, unless they are running already.
        used |= {package for module in used for package in packages_of(module)} - set(packages_of(name))
        graph[name] = used - {name}
    for name in ("tensor_partitioner", "planner"):  # which load a public name when it is asked for
        graph[name] = set()
    return graph


@cache
def trees():
    """Every module's syntax; read when a test asks for it, not when all tests are collected."""
    return {name: ast.parse(path.read_text()) for name, path in MODULES.items()}


def test_there_are_files():
    assert len(FILES) > 400


def test_imports_respect_the_walls():
    assert [breach for module, tree in trees().items() for breach in breaches(module, tree)] == []


def test_no_import_is_hidden_in_a_function():
    functions = [
        (module, node)
        for module in PRODUCT
        for node in ast.walk(trees()[module])
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    hidden = [
        f"{module}:{inner.lineno} imports within {node.name}"
        for module, node in functions
        for inner in ast.walk(node)
        if isinstance(inner, ast.Import | ast.ImportFrom)
    ]
    assert hidden == []


@pytest.mark.parametrize("floor", SEARCH_FLOORS)
def test_the_search_stands_on_its_floors(floor):
    below = {f"planner.search.{name}" for name in SEARCH_FLOORS[: SEARCH_FLOORS.index(floor) + 1]}
    modules = [module for module in PRODUCT if is_within(module, f"planner.search.{floor}")]
    assert modules
    for module in modules:
        for imported, line in imports(trees()[module]):
            if imported.startswith("planner.search"):
                assert ".".join(imported.split(".")[:3]) in below, f"{module}:{line} imports {imported}"


def test_the_simulator_reaches_into_no_other_object():
    """SimPy is used through its public interface."""
    private = [
        (module, node)
        for module in PRODUCT
        if is_within(module, "simulator")
        for node in ast.walk(trees()[module])
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
    ]
    others = [(module, node) for module, node in private if ast.unparse(node.value) != "self"]
    assert [f"{module}:{node.lineno}: {ast.unparse(node)}" for module, node in others] == []


def test_no_import_cycles():
    assert find_cycle(edges({name: trees()[name] for name in PRODUCT})) == []


OLD_CIRCLES = [
    ("executor.kernels.call", 'import_module("executor.torch.elementwise")'),
    ("executor.weights", 'import_module("executor.torch.batches")'),
]


@pytest.mark.parametrize(("module", "line"), OLD_CIRCLES)
def test_a_circle_closed_by_a_string_is_seen(module, line):
    changed = {name: trees()[name] for name in PRODUCT}
    changed[module] = ast.parse(f"{ast.unparse(changed[module])}\n{line}")
    assert find_cycle(edges(changed)) != []
    assert list(breaches(module, changed[module])) == []  # no wall stands there: the circle alone is wrong


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("planner.graph.ir", "import executor.worker"),
        ("planner.graph.ir", 'import_module("executor.worker")'),
        ("executor.worker", "import planner.planning"),
        ("executor.worker", "from tensor_partitioner.commands import plan"),
        ("simulator.report", 'HOME = "planner.search.run:best_plan"'),
        ("planner.errors", "from tensor_partitioner.commands import plan"),
        ("planner.errors", "import simpy"),
        ("planner.errors", "import torch"),
        ("results.experiment", "from tests import conftest"),
        ("tests.pages", "from results import figures"),
        ("tests.pages", "from tests.results import test_claims"),
    ],
)
def test_a_wall_that_is_broken_is_seen(module, line):
    assert list(breaches(module, ast.parse(line))) != []


@pytest.mark.parametrize("package", [name for name, path in PRODUCT.items() if path.name == "__init__.py"])
def test_nothing_public_has_the_name_of_a_submodule(package):
    """`planner.plan` cannot be a function and a module."""
    if in_torch_room(package):
        pytest.importorskip("torch")
    public = set(dir(importlib.import_module(package)))
    modules = {name.removeprefix(f"{package}.") for name in PRODUCT if name.startswith(f"{package}.")}
    assert not {name for name in public & modules if callable(getattr(importlib.import_module(package), name))}


def loaded(code):
    """Return the modules that a fresh interpreter has after running `code`."""
    code = f"import sys\n{code}\nprint(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.split())


ABOVE_RANKS = ("planner.search", "planner.models", "planner.explanations", "planner.pytorch", "simulator", "scipy")


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import planner", ("planner.search", "planner.models", "planner.explanations", "numpy")),
        ("import tensor_partitioner", ("planner", "simulator", "executor", "numpy")),
        ("from tensor_partitioner.commands import execute", ABOVE_RANKS),
        ("import simulator", ("planner.search", "planner.planning", "planner.explanations", "executor")),
    ],
)
def test_what_is_not_asked_for_is_not_loaded(code, absent):
    modules = loaded(code)
    assert not [module for module in modules if any(is_within(module, package) for package in absent)]


def packages_of(module):
    parts = module.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def find_cycle(graph):
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []
