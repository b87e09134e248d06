"""Published modules by name, created from their configurations alone: `timm:`, `torchvision:` and `hf:`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from planner.errors import GraphError
from planner.pytorch.private import NoContentError

Example = tuple[Any, ...]

SIZE = 224
"""Default height and width of images."""

TASKS = (
    "CausalLM", "Seq2SeqLM", "SpeechSeq2Seq", "MaskedLM", "ImageClassification", "AudioClassification",
    "ImageTextToText",
)  # fmt: skip
"""Tasks for configurations that name no architecture: the first that its model type supports."""


def maker(source: str) -> Callable[..., Example]:
    """Return the function of a batch that creates a published module; raise GraphError if the package is missing."""
    package, _, name = source.partition(":")
    try:
        make: Callable[..., Example] = partial(MAKERS[package], name)
        import_module(PACKAGES.get(package, package))
    except ModuleNotFoundError as error:
        raise GraphError(f"{source}: the package {error.name} is missing: pip install {error.name}") from error
    return make


def _timm(name: str, batch: int = 32) -> Example:
    module = _named(import_module("timm").create_model, name)
    return _classifier(module, batch, module.default_cfg.get("input_size", (3, SIZE, SIZE)))


def _torchvision(name: str, batch: int = 32) -> Example:
    models = import_module("torchvision").models
    options = {"init_weights": False, "aux_logits": False} if name in {"googlenet", "inception_v3"} else {}
    return _classifier(_named(partial(models.get_model, **options), name), batch, (3, SIZE, SIZE))


def _named(build: Callable[[str], Any], name: str) -> Any:
    try:
        return build(name)
    except NoContentError:  # a parameter's, for which it is built again with memory
        raise
    except (ValueError, RuntimeError) as error:
        raise GraphError(f"{name}: {error}") from error


def _classifier(module: nn.Module, batch: int, shape: tuple[int, ...]) -> Example:
    return module, (torch.zeros(batch, *shape),), F.cross_entropy, torch.zeros(batch, dtype=torch.long)


def _transformers(name: str, batch: int = 32, sequence: int = 512) -> Example:
    transformers = import_module("transformers")
    fields = json.loads(Path(name).read_text())
    kind = fields.pop("model_type", None)
    if kind not in transformers.CONFIG_MAPPING:
        raise GraphError(f"{name}: unknown model_type {kind!r} of transformers")
    config = transformers.CONFIG_MAPPING[kind].from_dict(fields)
    config.use_cache = False
    module = _architecture(transformers, config)(config)
    return module, _inputs(module, config, batch, sequence)


def _architecture(transformers: Any, config: Any) -> Callable[[Any], nn.Module]:
    """Return the class that a configuration names, or the one for the first supported task."""
    for name in config.architectures or ():
        if hasattr(transformers, name):
            return getattr(transformers, name)  # type: ignore[no-any-return]
    autos = (getattr(transformers, f"AutoModelFor{task}") for task in TASKS)
    for auto in autos:
        if type(config) in auto._model_mapping:
            return auto.from_config  # type: ignore[no-any-return]
    raise GraphError(f"model_type {config.model_type}: supports none of the tasks {', '.join(TASKS)}")


def _inputs(module: Any, config: Any, batch: int, sequence: int) -> Mapping[str, Tensor]:
    """Return a module's inputs: images, sound or tokens, and labels."""
    tokens = torch.ones(batch, sequence, dtype=torch.long)
    match module.main_input_name:
        case "pixel_values":
            sides = config.image_size if isinstance(config.image_size, list | tuple) else (config.image_size,) * 2
            return {"pixel_values": torch.zeros(batch, config.num_channels, *sides), "labels": tokens[:, 0]}
        case "input_features":
            bins, length = config.num_mel_bins, 2 * config.max_source_positions
            said = torch.ones(batch, min(sequence, config.max_target_positions), dtype=torch.long)
            return {"input_features": torch.zeros(batch, bins, length), "labels": said}
        case "input_ids":
            length = min(sequence, getattr(config, "max_position_embeddings", None) or sequence)
            words = torch.ones(batch, length, dtype=torch.long)
            return {"input_ids": words, "labels": words.clone()}
        case other:
            raise GraphError(f"model_type {config.model_type}: expected tokens, images or sound, found {other}")


MAKERS: Mapping[str, Callable[..., Example]] = {"timm": _timm, "torchvision": _torchvision, "hf": _transformers}
PACKAGES = {"hf": "transformers"}
