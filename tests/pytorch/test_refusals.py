"""What cannot be taken is said in one line, with status 2; what looks like it and can be is taken."""

import re
from pathlib import Path

import pytest

from tests.launcher import exit_status

torch = pytest.importorskip("torch")

import planner  # noqa: E402
from tensor_partitioner.commands.plan import main  # noqa: E402
from tests.pytorch import refused_models  # noqa: E402
from tests.pytorch.eager import differences  # noqa: E402

FILE = Path(refused_models.__file__)


def refusal(capsys, function):
    ended = exit_status(main, [f"{FILE}:{function}", "--workers", "2"])
    _, said = capsys.readouterr()
    return ended, said


@pytest.mark.parametrize("function", [*refused_models.SAID, "nothing_of_that_name"])
def test_one_line_says_why(function, capsys):
    status, said = refusal(capsys, function)
    assert (status, said.count("\n")) == (2, 1), said
    assert re.search(refused_models.SAID.get(function, "expected a function 'nothing_of_that_name'"), said), said


def test_one_line_says_what_differs_from_pytorch(capsys):
    status, said = refusal(capsys, "memory")
    assert (status, said.count("\n")) == (1, 1), said
    assert re.search(r"memory: \d+ of \d+ tensors differ from PyTorch", said), said


@pytest.mark.parametrize("function", refused_models.TAKEN)
def test_what_can_be_taken_trains_like_eager(function):
    torch.manual_seed(0)
    module, inputs = getattr(refused_models, function)()
    graph, of_loss, of_parameters = differences(
        module.double(), [torch.randn_like(tensor).double() for tensor in inputs]
    )
    assert of_loss < 1e-12
    assert max(of_parameters.values()) < 1e-10
    trained = {name for name, tensor in module.named_parameters() if tensor.requires_grad}
    assert set(of_parameters) == trained == {name for name in graph.updates if name in module.state_dict()}
    assert planner.plan(graph, workers=2).total_bytes >= 0


def test_what_is_refused_is_not_logged_at_length(caplog):
    module, inputs = refused_models.with_function(lambda self, x: torch.masked_select(x, x > 0) * torch.ones(12))
    with pytest.raises(planner.GraphError):
        planner.pytorch.from_torch(module, inputs)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
