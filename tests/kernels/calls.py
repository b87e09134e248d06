"""Apply a kernel to whole operands."""

import numpy as np
from operator_verification.application import Application, run_whole

import tdl
from executor.cases import Case
from executor.kernels import KERNELS


def apply(name, *operands, **attributes):
    operands = tuple(np.asarray(operand) for operand in operands)
    return run_whole(Application(tdl.catalog[name], KERNELS[name], Case(operands, attributes)))
