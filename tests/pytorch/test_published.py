"""Modules that packages publish are imported by their names, and a package that is not there is named."""

import json
import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import planner  # noqa: E402
from planner.errors import GraphError  # noqa: E402
from planner.models.zoo import is_zoo_name  # noqa: E402


@pytest.mark.parametrize(
    ("source", "package"),
    [("timm:resnet50", "timm"), ("torchvision:resnet50", "torchvision"), ("hf:c", "transformers")],
)
def test_a_missing_package_is_named(source, package, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, package, None)
    if source == "hf:c":
        source = f"hf:{tmp_path / 'config.json'}"
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    assert not is_zoo_name(source)
    with pytest.raises(GraphError, match=f"the package {package} is missing: pip install {package}$"):
        planner.model(source)


def pooled(channels, classes):
    return nn.Sequential(nn.Conv2d(channels, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, classes))


def named(name):
    """Build a module as the packages do, by a name that they know; one reads a parameter that it has made."""
    if name not in {"small", "small_that_reads"}:
        raise RuntimeError(f"Unknown model ({name})")
    module = pooled(3, 10)
    if name == "small_that_reads":
        module.scale = module[0].weight.sum().item()
    module.default_cfg = {"input_size": (3, 16, 20)}
    return module


@pytest.mark.parametrize(
    ("package", "module", "shape"),
    [
        ("timm", {"create_model": named}, (8, 3, 16, 20)),
        ("torchvision", {"models": SimpleNamespace(get_model=named)}, (8, 3, 224, 224)),
    ],
)
def test_a_published_classifier_is_that_of_its_function(package, module, shape, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, package, SimpleNamespace(**module))
    graph = planner.model(f"{package}:small", batch=8, optimizer="adamw")
    assert graph.tensors["input"].shape == shape
    assert graph.name == f"{package}:small"
    expected = planner.from_torch(
        pooled(3, 10),
        (torch.zeros(shape),),
        loss=nn.functional.cross_entropy,
        targets=(torch.zeros(8, dtype=torch.long),),
        optimizer=planner.Optimizer("adamw", lr=3e-4),
    )
    assert (graph.nodes, graph.tensors, graph.updates) == (expected.nodes, expected.tensors, expected.updates)
    again = planner.model(f"{package}:small_that_reads", batch=8, optimizer="adamw")
    assert (again.nodes, again.tensors, again.updates) == (graph.nodes, graph.tensors, graph.updates)
    with pytest.raises(GraphError, match=r"Unknown model \(large\)"):
        planner.model(f"{package}:large")
    with pytest.raises(GraphError, match=f"{package}:small: expected a function with parameters for --width"):
        planner.model(f"{package}:small", width=2)


class Named(nn.Module):
    """As transformers lays models out: a configuration, the name of the first input, results with a loss."""

    def __init__(self, config):
        super().__init__()
        self.main_input_name = config.first
        self.words, self.image = nn.Embedding(9, 4), pooled(3, 9)
        self.sound = nn.Linear(5, 9)

    def forward(self, labels, input_ids=None, pixel_values=None, input_features=None):
        if input_ids is not None:
            scores = self.words(input_ids) @ self.words.weight.T
        else:
            scores = self.image(pixel_values) if input_features is None else self.sound(input_features.mT.mean(1))
        if input_features is not None:
            labels = labels[:, 0]
        return {"loss": nn.functional.cross_entropy(scores.flatten(0, -2), labels.flatten())}


class Config(SimpleNamespace):
    @classmethod
    def from_dict(cls, fields):
        return cls(**{"architectures": ["Named"], "model_type": "mine", **fields})


@pytest.mark.parametrize(
    ("fields", "name", "shape"),
    [
        ({"first": "input_ids", "max_position_embeddings": 16}, "input_ids", (8, 16)),
        ({"first": "pixel_values", "image_size": 20, "num_channels": 3}, "pixel_values", (8, 3, 20, 20)),
        (
            {"first": "input_features", "num_mel_bins": 5, "max_source_positions": 6, "max_target_positions": 7},
            "input_features",
            (8, 5, 12),
        ),
    ],
)
def test_a_configuration_of_another_kind_is_built_by_transformers(fields, name, shape, monkeypatch, tmp_path):
    package = SimpleNamespace(CONFIG_MAPPING={"mine": Config}, Named=Named)
    monkeypatch.setitem(sys.modules, "transformers", package)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "mine", **fields}))
    graph = planner.model(f"hf:{file}", batch=8, sequence=64)
    assert graph.tensors[name].shape == shape
    file.write_text(json.dumps({"model_type": "yours"}))
    with pytest.raises(GraphError, match="unknown model_type 'yours' of transformers"):
        planner.model(f"hf:{file}")
