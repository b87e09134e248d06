"""Embedding tables of recommenders: their columns are split over workers, and bytes follow closed forms."""

from pathlib import Path

import pytest

import planner
from planner.parallel import Parallel
from tensor_partitioner.commands.decide import main
from tests.project.test_plan_command import run

torch = pytest.importorskip("torch")

MODEL = """
import torch
from torch import nn


class Recommender(nn.Module):
    def __init__(self, tables, rows, columns):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, columns, mode="sum") for _ in range(tables))
        self.top = nn.Linear(tables * columns, 1, bias=False)

    def forward(self, sparse):
        sums = [table(sparse[:, place : place + 1]) for place, table in enumerate(self.tables)]
        return self.top(torch.stack(sums, 1).flatten(1)).sum()


def make(batch=32, tables=3, rows=640, columns=16):
    with torch.device("meta"):
        module = Recommender(tables, rows, columns)
    return module, (torch.zeros(batch, tables, dtype=torch.int64),), torch.optim.SGD(module.parameters(), lr=0.1)
"""
ITEM_BYTES = 4


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "recommender.py"
    path.write_text(MODEL)
    return str(path)


@pytest.mark.parametrize(("workers", "batch", "tables", "columns"), [(2, 32, 3, 16), (4, 32, 3, 16), (8, 64, 5, 32)])
def test_columns_of_tables_cost_an_all_to_all(source, workers, batch, tables, columns):
    """Each worker looks up its columns for all samples. It sends each other worker the rows of its samples."""
    graph = planner.model(source, batch=batch, tables=tables, columns=columns)
    plan = planner.plan(graph, workers=workers, pins=["tables.*.weight=S1", "stack=S0", "top.weight=R"])
    looked_up = batch * tables * columns * ITEM_BYTES * (workers - 1) // workers
    all_reduced = 2 * (workers - 1) * tables * columns * ITEM_BYTES
    loss = 2 * (workers - 1) * ITEM_BYTES
    assert plan.total_bytes == looked_up + all_reduced + loss


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_data_parallelism_reduces_the_gradient_of_every_row(source, workers):
    graph = planner.model(source, rows=100)
    plan = planner.plan(graph, parallel=Parallel(dp=workers))
    weights = 3 * 100 * 16 + 3 * 16
    loss = 2 * (workers - 1) * ITEM_BYTES
    assert plan.total_bytes == 2 * (workers - 1) * weights * ITEM_BYTES + loss


def test_tables_that_no_device_holds_are_split_by_columns(source, capsys):
    large = MODEL.replace("batch=32, tables=3, rows=640, columns=16", "tables=4, rows=40_000_000, columns=128")
    Path(source).write_text(large.replace("torch.zeros(batch,", "torch.zeros(65536,"))
    assert run(main, source, "--topo", "hgx-h100") == 0
    lines = capsys.readouterr().out.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("train as  searched plan"))
    assert lines[first + 1].endswith(": 100% of weights by columns")
