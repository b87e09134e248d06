"""What kernels keep beside operands and results on a GPU, counted on the double of CuPy: at most what is estimated."""

import pytest

pytest.importorskip("torch")
import executor.torch  # noqa: F401  # enters its kernels
import planner
from executor.check import temporaries_bytes
from executor.training import rank_programs
from planner.program.workspace import worker_workspace_bytes
from tests.cupy_double.counted import counted
from tests.cupy_double.torch_operators import Operators
from topologies.schema import WORKSPACE_BYTES

MODELS = {
    "gpt2": {"layers": 1, "batch": 1, "sequence": 64, "vocabulary": 500, "optimizer": "adamw", "dtype": "mixed"},
    "transformer-1-64": {"batch": 4, "sequence": 64, "vocabulary": 100, "optimizer": "adamw"},
    "cnn-3-16": {"batch": 8, "image": 32},
    "rnn-1-64": {"batch": 32, "unroll": 3, "dtype": "bfloat16"},
}


@pytest.mark.parametrize("library", ["arrays", "torch"])
@pytest.mark.parametrize("model", MODELS)
def test_temporaries_are_no_more_than_estimated(model, library):
    plan = planner.plan(planner.model(model, **MODELS[model]), workers=1)
    worker = rank_programs(plan, 0).training.worker
    pool_bytes = counted(plan, library, Operators() if library == "torch" else None).pool_bytes
    workspace = worker_workspace_bytes(worker, WORKSPACE_BYTES)
    assert 0 < pool_bytes <= workspace + temporaries_bytes(worker, pytorch=library == "torch")
