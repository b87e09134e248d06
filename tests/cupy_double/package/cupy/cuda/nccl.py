"""The double of `cupy.cuda.nccl`: groups of messages go by MPI; one outside a group waits for its peer."""

import warnings

from mpi4py import MPI

from cupy import _memory, _names, _refused
from cupy.cuda import Device, _streams

available = "nccl" not in _refused.REFUSED
if not available:
    warnings.warn("nccl library could not be loaded.", stacklevel=2)
NAME = tuple(range(128))
_GROUPS = []


@_names.checked_function("cupy.cuda.nccl")
def get_unique_id():
    _refused.refuse("nccl id", "NCCL_ERROR_INTERNAL_ERROR: internal error", NcclError)
    return NAME


@_names.checked_function("cupy.cuda.nccl")
def groupStart():
    _GROUPS.append([])


@_names.checked_function("cupy.cuda.nccl")
def groupEnd():
    _complete(_GROUPS.pop())


def _complete(calls):
    for stream, _ in calls:
        stream._drain()
    MPI.Request.Waitall([call() for _, call in calls])


class NcclError(RuntimeError):
    """What NCCL says."""


@_names.checked("cupy.cuda.nccl.NcclCommunicator")
class NcclCommunicator:
    def __init__(self, ndev, commId, rank, config=None):
        self._comm = MPI.COMM_WORLD.Dup()
        if (ndev, commId, rank) != (self._comm.Get_size(), NAME, self._comm.Get_rank()):
            raise NcclError("NCCL_ERROR_INVALID_ARGUMENT: invalid argument (run with NCCL_DEBUG=WARN for details)")
        if len(set(self._comm.allgather(Device().pci_bus_id))) < ndev:
            raise NcclError("NCCL_ERROR_INVALID_USAGE: invalid usage (run with NCCL_DEBUG=WARN for details)")
        _refused.refuse("nccl init", "NCCL_ERROR_SYSTEM_ERROR: unhandled system error", NcclError)

    def destroy(self):
        self._comm.Free()

    def send(self, sendbuf, count, datatype, peer, stream):
        self._call(self._comm.Issend, sendbuf, count, (datatype, peer, stream))

    def recv(self, recvbuf, count, datatype, peer, stream):
        self._call(self._comm.Irecv, recvbuf, count, (datatype, peer, stream))

    def _call(self, function, pointer, count, rest):
        datatype, peer, stream = rest
        if datatype != _names.entry("cupy.cuda.nccl", "NCCL_UINT8")["value"]:
            raise NotImplementedError("the double's messages are bytes")
        _memory.require_reachable(pointer, count)
        _memory.LAUNCHES["nccl"] += 1
        data = _memory.bytes_at(pointer, count)
        group = _GROUPS[-1] if _GROUPS else None
        call = _streams.STREAMS[stream], lambda: function([data, MPI.BYTE], peer)
        if group is None:
            _complete([call])
        else:
            group.append(call)


def __getattr__(name):
    known = _names.entry("cupy.cuda.nccl", name)
    if isinstance(known, dict) and "value" in known:
        return known["value"]
    raise NotImplementedError(f"cupy.cuda.nccl.{name} is CuPy's, but the double has none")
