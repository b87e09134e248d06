"""Operators of PyTorch that the graph has none for, run whole: as eager, and on several workers as on one."""

import json
import subprocess
from unittest.mock import Mock

import numpy as np
import pytest

from tests.launcher import exit_status

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import executor.torch  # noqa: E402, F401  # for the kernels that call PyTorch
from executor.torch.elementwise import OPAQUE_KERNELS  # noqa: E402
from planner.errors import GraphError  # noqa: E402
from planner.graph import Optimizer  # noqa: E402
from planner.graph.opaque_ops import CALL, GRADIENT  # noqa: E402
from planner.pytorch import from_torch  # noqa: E402
from planner.report import plan_facts  # noqa: E402
from planner.search import SearchOptions  # noqa: E402
from planner.search.run import search  # noqa: E402
from tensor_partitioner.commands.plan import main  # noqa: E402
from tests.cross.launch import BIN, execute  # noqa: E402
from tests.cross.loopback import trains_as_one_worker  # noqa: E402
from tests.launcher import mpirun  # noqa: E402
from tests.pytorch.eager import RATE, eager_steps, imported_steps  # noqa: E402
from tests.pytorch.models import OF_AN_UNKNOWN_OPERATOR  # noqa: E402
from tests.tables import kept_tables  # noqa: E402


class Unknown(nn.Module):
    """Results of several values, an operator that changes its operand, one of numbers and dtypes, one in a list."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x):
        h = self.one(x)
        values, _ = torch.kthvalue(h, 2, dim=1, keepdim=True)
        h = values + torch.renorm(h, 2, 0, 3.0)
        h = torch.renorm(h, 2, 0, 1.0)
        (h,) = torch.meshgrid(h.flatten(), indexing="ij")
        return self.two(h.view(-1, 8))


def case(dtype=torch.float64):
    torch.manual_seed(0)
    module = Unknown().to(dtype)
    return module, torch.randn(8, 6, dtype=dtype), nn.functional.cross_entropy, torch.randint(0, 5, (8,))


@pytest.fixture(scope="module", autouse=True)
def tables():
    with kept_tables():
        yield


@pytest.fixture(scope="module")
def graph():
    module, x, loss, target = case()
    return from_torch(
        module, [x], loss=loss, targets=[target], optimizer=Optimizer("sgd", lr=RATE), opaque_unknown=True
    )


def test_as_eager(graph):
    module, x, loss, target = case()
    losses, parameters = eager_steps(module, [x], loss, [target])
    ours, trained_parameters = imported_steps(graph, module, [x], [target])
    np.testing.assert_allclose(ours, losses, rtol=1e-12)
    for name, expected in parameters.items():
        np.testing.assert_allclose(trained_parameters[name].reshape(expected.shape), expected, atol=1e-12)


def test_several_workers_as_one(graph):
    plan = search(graph, SearchOptions(ways=(2, 2), placements="S,R"))
    trains_as_one_worker(plan)


def test_the_plan_says_what_it_costs(graph):
    plan = search(graph, SearchOptions(ways=(2, 2), placements="S"))
    row = plan_facts.opaque_nodes(plan)
    called = [node for node in graph.nodes if node.op in (CALL, GRADIENT)]
    assert row["nodes"] == len(called) == sum(row["operators"].values())
    assert row["operators"]["aten.kthvalue.default"] == 2
    assert 0 < row["bytes"] <= plan.total_bytes
    assert "opaque operators" in str(plan)


def test_what_draws_random_numbers_is_refused():
    class Random(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Linear(4, 4)

        def forward(self, x):
            return torch.poisson(self.one(x).abs()).sum()

    with pytest.raises(GraphError, match="poisson is not supported"):
        from_torch(Random(), [torch.randn(2, 4)], opaque_unknown=True)


MODEL = OF_AN_UNKNOWN_OPERATOR.replace("logcumsumexp(self.layer(x), dim=1)", "special.erfcx(self.layer(x))")


def run(*arguments):
    return exit_status(main, [*map(str, arguments)])


@pytest.mark.mpi
def test_from_file_to_ranks(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(MODEL)
    source, path, said = f"{tmp_path}/mine.py:make", tmp_path / "plan.json", tmp_path / "said.json"
    assert run(source, "--workers", 2) == 2
    assert "is not supported (or --opaque-unknown)" in capsys.readouterr().err
    assert run(source, "--workers", 2, "--opaque-unknown", "-o", path, "--json", said) == 0
    assert json.loads(said.read_text())["opaque"]["operators"] == {"aten.special_erfcx.default": 2}
    execute(2, path, "--steps", 2, "--check")


def test_only_modules_have_unknown_operators(capsys):
    assert run("mlp-2-8", "--workers", 2, "--opaque-unknown") == 2
    assert "mlp-2-8: expected file.py:function" in capsys.readouterr().err


@pytest.mark.parametrize("kernel", OPAQUE_KERNELS.values(), ids=OPAQUE_KERNELS)
def test_memory_that_runs_out_is_no_fault_of_arguments(monkeypatch, kernel):
    monkeypatch.setattr("executor.torch.elementwise._operands", Mock(side_effect=torch.OutOfMemoryError))
    with pytest.raises(torch.OutOfMemoryError):
        kernel(None)


GROWS = {"filename": "grown", "shared": True, "size": 1 << 12}


MORE = "expected an operator that computes tensors from tensors and numbers"
ELSEWHERE = "name the file that defines it, as in --operators FILE.py"


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("target", "arguments", "says"),
    [
        ("aten.from_file.default", GROWS, MORE),
        ("aten._print.default", {"s": "printed"}, MORE),
        ("aten.special_erfcx.default", {"other": 1}, "aten.special_erfcx.default: KeyError: 'self'"),
        ("profiler._record_function_enter_new.default", None, ELSEWHERE),
    ],
)
def test_a_plan_names_no_operator_that_does_more_than_compute(tmp_path, monkeypatch, target, arguments, says):
    (tmp_path / "mine.py").write_text(MODEL)
    path = tmp_path / "plan.json"
    assert run(f"{tmp_path}/mine.py:make", "--workers", 1, "--opaque-unknown", "-o", path) == 0
    record = json.loads(path.read_text())
    (called,) = (node for node in record["graph"]["nodes"] if node["op"] == CALL)
    called["attrs"] |= {"target": target, "arguments": arguments or called["attrs"]["arguments"]}
    path.write_text(json.dumps(record))
    monkeypatch.chdir(tmp_path)
    done = subprocess.run([mpirun(), "-n", "1", BIN / "execute", path], capture_output=True, text=True, check=False)
    assert done.returncode in (1, 2)
    assert says in done.stderr
    assert "printed" not in done.stdout
    assert not (tmp_path / "grown").exists()
