"""The tensor description language: describes what an operator reads and writes, and derives how it can be split."""

from tdl.analysis import Access as Access
from tdl.analysis import Halo as Halo
from tdl.analysis import Output as Output
from tdl.analysis import Strategy as Strategy
from tdl.catalog import catalog as catalog
from tdl.catalog import register as register
from tdl.errors import TDLError as TDLError
from tdl.expr import REDUCERS as REDUCERS
from tdl.expr import Expr as Expr
from tdl.index import Affine as Affine
from tdl.index import Bounds as Bounds
from tdl.index import Digits as Digits
from tdl.index import Index as Index
from tdl.index import Whole as Whole
from tdl.language import *  # noqa: F403  # the words that descriptions are written in
from tdl.operator import Description as Description
from tdl.operator import Operator as Operator
from tdl.operator import op as op
from tdl.undescribed import ON_ONE as ON_ONE
from tdl.undescribed import opaque as opaque
