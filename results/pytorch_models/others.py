"""Models of Hugging Face's `transformers` for other tasks: sound, films, maps of pixels, images with words, series."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from inspect import signature
from typing import Any

import torch
import torchvision
import transformers
from torch import nn
from transformers import CONFIG_MAPPING, PretrainedConfig

from results.pytorch_models import vision
from results.pytorch_models.language import BATCH, CLASSES, FIRST_WORD, LENGTH, VOCABULARY, small
from results.pytorch_models.sweep import STEPS, Make, Model
from results.pytorch_models.vision import EXTENT, make_small, parts_of, without_dropout

NAMES = transformers.models.auto.modeling_auto
CHOICES, FRAMES, SAMPLES, FEATURES, LETTERS = 2, 8, 3200, 48, 32
"""Answers to choose from, images of a film, samples of sound, frames of it as spectra, and what is spoken."""

Batch = dict[str, torch.Tensor]

TASKS: Mapping[str, Mapping[str, Any]] = {
    task: getattr(NAMES, f"MODEL_FOR_{task}_MAPPING_NAMES")
    for task in (
        "MULTIPLE_CHOICE", "NEXT_SENTENCE_PREDICTION", "QUESTION_ANSWERING", "CTC", "AUDIO_CLASSIFICATION",
        "AUDIO_FRAME_CLASSIFICATION", "SPEECH_SEQ_2_SEQ", "SEMANTIC_SEGMENTATION", "DEPTH_ESTIMATION",
        "MASKED_IMAGE_MODELING", "VIDEO_CLASSIFICATION", "ZERO_SHOT_IMAGE_CLASSIFICATION",
        "VISUAL_QUESTION_ANSWERING", "IMAGE_TO_IMAGE", "TIME_SERIES_CLASSIFICATION", "TIME_SERIES_REGRESSION",
    )
}  # fmt: skip
"""The architectures of each task, by their type."""

FILMS = ("mc3_18", "mvit_v1_b", "mvit_v2_s", "r2plus1d_18", "r3d_18", "s3d", "swin3d_t")
"""Torchvision's classifiers of films."""


class WithLoss(nn.Module):
    """A model that returns its loss, or the mean of squares of its first result where it has none."""

    def __init__(self, model: nn.Module, **settings: Any) -> None:
        super().__init__()
        self.model, self.settings = model, settings

    def forward(self, **batch: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss of a batch, by its name."""
        result = self.model(**batch, **self.settings)
        loss = result.get("loss")
        if loss is None:
            loss = next(value for value in result.values() if isinstance(value, torch.Tensor)).square().mean()
        return {"loss": loss}


def models() -> Iterator[Model]:
    """Yield every model."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    for task, names in TASKS.items():
        for kind in names:
            yield Model(f"{task.lower()}/{kind}", partial(_model_and_batches, task, kind))
    for name in FILMS:
        yield Model(f"torchvision/{name}", partial(_film, name))


def _film(name: str) -> Make:
    extent = 224 if name.startswith(("mvit", "s3d")) else EXTENT
    module = vision.WithLoss(without_dropout(torchvision.models.get_model(name, weights=None, num_classes=CLASSES)))
    frames = 16 if name.startswith(("mvit", "s3d")) else FRAMES
    shape = 2, 3, frames, extent, extent
    return module, [{"images": torch.randn(shape), "labels": torch.randint(CLASSES, (2,))} for _ in range(STEPS)]


def _model_and_batches(task: str, kind: str) -> Make:
    """Return a model and a batch for every step."""
    named = TASKS[task][kind]
    architecture = getattr(transformers, named if isinstance(named, str) else named[0])
    config_class = architecture.config_class or CONFIG_MAPPING[kind]
    config = config_class(**small(config_class(), {}))
    for part in parts_of(config):
        make_small(part, OF_PARTS)
        if getattr(part, "vocab_size", 0) is None:
            part.vocab_size = VOCABULARY
        if len(getattr(part, "conv_dim", ())) == len(CONVOLUTIONS):
            part.conv_dim = CONVOLUTIONS
    config.num_labels = config.num_targets = 2 if task == "QUESTION_ANSWERING" else CLASSES
    module = architecture(config)
    settings = {"return_loss": True} if task.startswith("ZERO_SHOT") else {}
    return WithLoss(without_dropout(module), **settings), [_batch(task, module) for _ in range(STEPS)]


CONVOLUTIONS = (32,) * 7
"""Channels of the convolutions of sound."""

OF_PARTS: dict[str, Any] = {
    "image_size": EXTENT, "num_frames": FRAMES, "num_conv_pos_embedding_groups": 4,
    "num_conv_pos_embeddings": 16, "mask_time_prob": 0.0, "mask_feature_prob": 0.0, "layerdrop": 0.0,
}  # fmt: skip
"""Values of settings of parts of these models, for configurations that have them."""


def _words() -> torch.Tensor:
    return torch.randint(FIRST_WORD, VOCABULARY, (BATCH, LENGTH))


def _batch(task: str, module: nn.Module) -> Batch:
    """Return what a model takes, by the names of its parameters, and the labels of its task."""
    config: PretrainedConfig = module.config
    names = signature(module.forward).parameters
    given: dict[str, Callable[[], torch.Tensor]] = {
        "input_ids": _words,
        "attention_mask": lambda: _mask(LENGTH),
        "pixel_values": lambda: _pixels(task),
        "input_values": lambda: torch.randn(BATCH, SAMPLES),
        "input_features": lambda: torch.randn(BATCH, FEATURES, _bins(config)),
        "past_values": lambda: torch.randn(BATCH, config.context_length, config.num_input_channels),
    }
    if task == "SPEECH_SEQ_2_SEQ":
        del given["input_ids"]
    batch = {name: make() for name, make in given.items() if name in names}
    if task == "MULTIPLE_CHOICE":
        batch = {name: value.view(-1, CHOICES, LENGTH) for name, value in batch.items()}
    if "input_ids" not in batch:
        batch.pop("attention_mask", None)
    return batch | {name: value for name, value in _labels(task, batch).items() if name in names}


def _mask(length: int) -> torch.Tensor:
    return (torch.arange(length) < torch.randint(length // 2, length, (BATCH, 1))).long()


def _bins(config: PretrainedConfig) -> int:
    names = "num_mel_bins", "feature_projection_input_dim"
    return next((getattr(config, name) for name in names if hasattr(config, name)), 80)


def _pixels(task: str) -> torch.Tensor:
    frames = (FRAMES,) if task == "VIDEO_CLASSIFICATION" else ()
    return torch.randn(BATCH, *frames, 3, EXTENT, EXTENT)


def _labels(task: str, batch: Batch) -> Batch:
    """Return labels of a task, under all names that models have for them."""
    rows = len(next(iter(batch.values())))
    match task:
        case "QUESTION_ANSWERING":
            return {name: torch.randint(LENGTH // 2, (rows,)) for name in ("start_positions", "end_positions")}
        case "TIME_SERIES_REGRESSION":
            return {"target_values": torch.randn(rows, CLASSES)}
        case "TIME_SERIES_CLASSIFICATION":
            return {"target_values": torch.randint(CLASSES, (rows,))}
        case "VISUAL_QUESTION_ANSWERING":
            return {"labels": torch.rand(rows, CLASSES)}
        case "CTC" | "SPEECH_SEQ_2_SEQ":
            return {"labels": torch.randint(FIRST_WORD, LETTERS, (rows, 4))}
    count, pixels = CLASSES_OF.get(task, (0, ()))
    return {"labels": torch.randint(count, (rows, *pixels))} if count else {}


CLASSES_OF: Mapping[str, tuple[int, tuple[int, ...]]] = {
    "SEMANTIC_SEGMENTATION": (CLASSES, (EXTENT, EXTENT)),
    "MULTIPLE_CHOICE": (CHOICES, ()),
    "NEXT_SENTENCE_PREDICTION": (2, ()),
    "AUDIO_CLASSIFICATION": (CLASSES, ()),
    "VIDEO_CLASSIFICATION": (CLASSES, ()),
}
"""Of how many classes every sample of a task has one, or every pixel."""
