"""Extensions of the executor by users' files: kernels and cases of their operators, data sets, transports."""

from __future__ import annotations

from collections.abc import Callable

from executor.cases import REGISTERED, Generate
from executor.data import DATA_SETS, MakeDataSet
from executor.kernels import KERNELS, Kernel
from executor.transport import CHOICES, REGISTERED as TRANSPORTS, MakeTransport, TransportSpec, plain_arena
from planner.extensions import register_in, register_named
from tdl.index import TDLError


def kernel(name: str) -> Callable[[Kernel], Kernel]:
    """Register the decorated function as the kernel of an operator. Raises TDLError if it has one."""
    return register_in(KERNELS, "kernel", name)


def cases(name: str) -> Callable[[Generate], Generate]:
    """Register the decorated function as the generator of an operator's random cases. Raises TDLError if it has one."""
    return register_in(REGISTERED, "generator of cases", name)


def data_set(name: str) -> Callable[[MakeDataSet], MakeDataSet]:
    """Register the decorated function as the data set `--data NAME`. Raises TDLError if the name is taken."""
    return register_named(DATA_SETS, "data set", name)


def transport(name: str) -> Callable[[MakeTransport], MakeTransport]:
    """Register the decorated class as the transport `--transport NAME`. Raises TDLError if the name is taken.

    All ranks call it together with the worker's memory, MPI's communicator, and whether ranks outnumber cores.
    """
    if name in CHOICES:
        raise TDLError(f"{name}: name clash: a transport of this name already exists")
    register = register_named(TRANSPORTS, "transport", name)

    def enter(make: MakeTransport) -> MakeTransport:
        register(TransportSpec(plain_arena, make))
        return make

    return enter
