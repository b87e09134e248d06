"""Architectures of Hugging Face's `transformers` import, plan and train as they do in PyTorch."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import planner  # noqa: E402
from examples.transformers_models import ARCHITECTURES  # noqa: E402
from results.pytorch_models.sweep import InDouble  # noqa: E402
from tests.pytorch.eager import differences  # noqa: E402

transformers.logging.set_verbosity_error()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_step_trains_like_eager(name):
    torch.manual_seed(0)
    module, inputs = ARCHITECTURES[name]()
    module = module.double()
    for parameter in module.parameters():  # so that none is zero, which would hide what it is multiplied with
        parameter.data += 0.1 * torch.randn_like(parameter)
    inputs = {key: tensor.double() if tensor.is_floating_point() else tensor for key, tensor in inputs.items()}
    with InDouble():
        graph, of_loss, of_parameters = differences(module, inputs, steps=1)
    trained = {key for key, parameter in module.named_parameters() if parameter.requires_grad}
    assert trained <= set(of_parameters)
    assert of_loss < 1e-12
    assert max(of_parameters.values()) < 1e-10, max(of_parameters.items(), key=lambda item: item[1])
    assert planner.plan(graph, workers=2).total_bytes > 0
