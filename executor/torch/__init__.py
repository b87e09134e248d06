"""Plans run where PyTorch runs: ranks that torchrun starts, PyTorch's memory, kernels and messages; its files too.

Importing this package imports PyTorch; nothing else of the project but `planner.pytorch` does. It enters the kernels
that call PyTorch's operators, and the reader of its files, in the executor's tables.
"""

import torch

from executor.backend import ON_STREAM
from executor.kernels import KERNELS, LIBRARIES
from executor.torch.distributed import Distributed, distribute
from executor.torch.kernels import KERNEL_SET
from executor.torch.opaque import OPAQUE_KERNELS
from executor.torch.state_files import read
from executor.torch.streams import on_stream_of
from executor.weights.files import ANY_OTHER, READERS
from planner.failures import describe_failure, out_of_memory

KERNELS.update(OPAQUE_KERNELS)
LIBRARIES["torch"] = KERNEL_SET
ON_STREAM.append(on_stream_of)
READERS[ANY_OTHER] = read
describe_failure.register(torch.OutOfMemoryError, out_of_memory)

__all__ = ["Distributed", "distribute"]
