"""The tensor description language: describes what an operator reads and writes, and derives how it can be split."""

from tdl import language
from tdl.analysis import Access, Halo, Output, Strategy
from tdl.catalog import catalog, register
from tdl.errors import TDLError
from tdl.expr import REDUCERS, Expr
from tdl.index import Affine, Bounds, Digits, Index, Whole
from tdl.language import *  # noqa: F403  # the words that descriptions are written in
from tdl.operator import Description, Operator, op
from tdl.undescribed import ON_ONE, opaque

__all__ = [
    "ON_ONE",
    "REDUCERS",
    "Access",
    "Affine",
    "Bounds",
    "Description",
    "Digits",
    "Expr",
    "Halo",
    "Index",
    "Operator",
    "Output",
    "Strategy",
    "TDLError",
    "Whole",
    "catalog",
    "op",
    "opaque",
    "register",
]
__all__ += language.__all__
