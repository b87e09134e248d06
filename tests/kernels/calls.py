"""Apply a kernel to whole operands."""

import numpy as np

import tdl
from executor.cases import Case
from executor.kernels import KERNELS
from executor.verification import run_whole
from executor.verification.parts import Subject


def apply(name, *operands, **attributes):
    operands = tuple(np.asarray(operand) for operand in operands)
    description = tdl.catalog[name].describe(tuple(operand.ndim for operand in operands), attributes)
    extents = description.extents(tuple(operand.shape for operand in operands), attributes)
    return run_whole(Subject(KERNELS[name], description, Case(operands, attributes), extents, np))
