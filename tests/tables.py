"""Tables of operators that tests add to: what was in them before is all that is in them after."""

import sys
from contextlib import contextmanager

from executor.kernels import KERNELS
from planner.graph.rules import RULES

OPERATORS = sys.modules["tdl.catalog"]._operators


@contextmanager
def kept_tables():
    """Remove, at the end, every operator, gradient rule and kernel that came in between."""
    tables = (OPERATORS, RULES, KERNELS)
    before = [dict(table) for table in tables]
    try:
        yield
    finally:
        for table, entries in zip(tables, before, strict=True):
            table.clear()
            table.update(entries)
