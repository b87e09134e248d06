"""Image models as people have them: every family of `timm`, the image classifiers of `transformers`, torchvision's."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from functools import cache, partial
from itertools import product
from typing import Any

import timm
import torch
import torch.nn.functional as F  # noqa: N812
import torchvision
from torch import nn
from transformers import PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING

from results.pytorch_models.sweep import STEPS, Make, Model

Settings = Mapping[str, Any]

DROPPING = (nn.modules.dropout._DropoutNd, torchvision.ops.StochasticDepth)
"""Modules whose probability of dropping is `p`."""

BATCH, CLASSES, EXTENT = 2, 5, 64

TIMM = """
    beit_base_patch16_224 halonet_h1 test_byobnet cait_xxs24_224 coat_tiny convit_tiny convmixer_768_32
    test_convnext cpubone_nano crossvit_tiny_240 csatv2 cs3darknet_focus_s cspnext_tiny davit_tiny deepseek_vit_412m
    deit_tiny_patch16_224 densenet121 dla46x_c dpn48b edgenext_xx_small efficientformer_l1 efficientformerv2_s0
    test_efficientnet efficientvim_m1 efficientvit_b0 efficientvit_m0 vit_tiny_patch16_dinov3_qkvb fasternet_t0
    fastvit_t8 focalnet_tiny_srf gcvit_xxtiny gemma4_vit_167m ghostnet_050 hardcorenas_b hgnetv2_b0 hiera_tiny_224
    sam2_hiera_tiny hrnet_w18_small iformer_t inception_next_atto inception_resnet_v2 inception_v3 inception_v4
    lcnetv2_small levit_128s lowformer_b0 test_mambaout test_coatnet poolformerv2_s12 gmlp_ti16_224
    mobilenetv3_small_050 mobilenetv5_base mobilevit_xxs mvitv2_tiny naflexvit_base_patch16_parfac_gap nasnetalarge
    nest_tiny nextvit_small test_nfnet pit_ti_224 pnasnet5large pvt_v2_b0 qwen3_vit_88m rdnet_tiny regnetx_002
    repghostnet_050 repvit_m1 res2next50 resnest14d test_resnet resnetv2_18 rexnet_100 selecsls42 legacy_seresnet18
    sequencer2d_s shvit_s1 skresnet18 starnet_s050 swiftformer_xs swin_tiny_patch4_window7_224
    swinv2_tiny_window8_256 swinv2_cr_tiny_224 tiny_vit_5m_224 tnt_s_legacy_patch16_224 tresnet_m twins_svt_small
    vgg11 visformer_tiny test_vit vit_tiny_r_s16_p8_224 test_vit_relpos samvit_base_patch16_224 vitamin_small_224
    volo_d1_224 ese_vovnet19b_slim_dw legacy_xception xception41p xcit_nano_12_p8_224
""".split()  # noqa: SIM905
"""The smallest model of every family, which is a file of `timm`."""

TORCHVISION = (
    "alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "efficientnet_v2_s", "googlenet", "inception_v3",
    "maxvit_t", "mnasnet0_5", "mobilenet_v2", "mobilenet_v3_small", "regnet_x_400mf", "regnet_y_400mf", "resnet18",
    "resnext50_32x4d", "shufflenet_v2_x0_5", "squeezenet1_1", "swin_t", "swin_v2_t", "vgg11_bn", "vit_b_32",
    "wide_resnet50_2",
)  # fmt: skip

SEGMENTATION = ("deeplabv3_mobilenet_v3_large", "deeplabv3_resnet50", "fcn_resnet50", "lraspp_mobilenet_v3_large")

SMALLER: tuple[Settings, ...] = (
    {"depths": (1, 1, 1, 1)}, {"layers": (1, 1, 1, 1)}, {"depth": 2}, {"mlp_ratio": 0.125}, {},
)  # fmt: skip
"""Settings that make models of `timm` shallow, or their layers narrow, of which the first is taken that a model has."""

SIZES: tuple[Settings, ...] = ({"img_size": EXTENT}, {"img_size": 128}, {"img_size": 112}, {})
EXTENTS = (EXTENT, 128, None)
"""Pixels along an image that is not among a model's settings; the model's own last."""

WINDOWS_OF_SEVEN = ("swin", "donut-swin", "maxvit_t")
"""Models whose windows of 7 x 7 must divide the image."""

WITHOUT_LOSS = ("pp_lcnet",)
"""Models of `transformers` that return logits alone."""

LEFT_OUT = ("dinat", "shieldgemma2")
"""Models of `transformers` that need a compiled library, or that are not trained as classifiers."""

CONFIGURATION: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8,
    "intermediate_size": 64, "image_size": EXTENT, "vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4,
    "num_latents": 8, "d_latents": 32, "num_self_attends_per_block": 1, "projection_dim": 32,
    "num_self_attention_heads": 4, "num_cross_attention_heads": 1, "mm_tokens_per_image": 4,
    "backbone_featmap_shape": (1, 32, 4, 4), "vision_use_head": True,
}  # fmt: skip
"""Small values of settings of `transformers`, for configurations that have them."""


class WithLoss(nn.Module):
    """A model that returns its loss, the sum of that of all its results if there are several."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss, by its name, of images [n, c, y, x] with a class each, or one for every pixel.

        Films are [n, c, t, y, x].
        """
        result = self.model(images)
        several = result.values() if isinstance(result, Mapping) else result
        several = [several] if isinstance(several, torch.Tensor) else several
        return {"loss": torch.stack([F.cross_entropy(logits, labels) for logits in several]).sum()}


def models() -> Iterator[Model]:
    """Yield every model."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    for name in TIMM:
        yield Model(f"timm/{timm.models.model_entrypoint(name).__module__.split('.')[-1]}", partial(_timm, name))
    for configuration, kinds in MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING.items():
        if configuration.model_type in LEFT_OUT:
            continue
        kind = kinds[0] if isinstance(kinds, tuple) else kinds
        name = kind.__name__.replace("ForImageClassification", "")
        yield Model(f"transformers/{name}", partial(_transformers, configuration, kind))
    for name in TORCHVISION:
        yield Model(f"torchvision/{name}", partial(_torchvision, name))
    for name in SEGMENTATION:
        yield Model(f"torchvision/{name}", partial(_segmentation, name))


def _images(extent: int = EXTENT) -> torch.Tensor:
    return torch.randn(BATCH, 3, extent, extent)


def _batches(extent: int, *pixels: int, images: str = "images") -> list[dict[str, torch.Tensor]]:
    """Return a batch for every step, with labels of images or of their pixels."""
    return [{images: _images(extent), "labels": torch.randint(CLASSES, (BATCH, *pixels))} for _ in range(STEPS)]


def without_dropout(module: nn.Module) -> nn.Module:
    """Return a module in training whose every probability of dropping is zero: PyTorch's masks are others."""
    for part in module.modules():
        names = [name for name, value in vars(part).items() if "drop" in name and isinstance(value, float)]
        for name in names + ["p"] * isinstance(part, DROPPING):
            setattr(part, name, 0.0)
    return module.train()


def _timm(name: str) -> Make:
    settings, extent = _smallest(name)
    module = timm.create_model(name, num_classes=CLASSES, **settings)
    return WithLoss(without_dropout(module)), _batches(extent)


@cache
def _smallest(name: str) -> tuple[Settings, int]:
    """Return with how few layers and pixels a model can be built, which its forward pass tells."""
    for size, smaller in product(SIZES, SMALLER):
        for given in [size["img_size"]] if size else EXTENTS:
            try:
                module = timm.create_model(name, num_classes=CLASSES, **smaller, **size)
                extent = given or module.default_cfg["input_size"][-1]
                with torch.no_grad():
                    module.eval()(_images(extent))
            except (TypeError, RuntimeError, AssertionError, ValueError, IndexError, KeyError, StopIteration):
                continue
            return {**smaller, **size}, extent
    raise ValueError(f"{name}: cannot be built")


def _transformers(configuration: type[PretrainedConfig], kind: type[nn.Module]) -> Make:
    settings, extent = configuration(), 224 if configuration.model_type in WINDOWS_OF_SEVEN else EXTENT
    for part in parts_of(settings):
        make_small(part, CONFIGURATION | {"image_size": extent})
    settings.num_labels = CLASSES
    module = without_dropout(kind(settings))
    if configuration.model_type in WITHOUT_LOSS:
        return WithLoss(module), _batches(extent)
    batches = _batches(extent, images="pixel_values")
    return module, [_named_inputs(configuration.model_type, batch) for batch in batches]


def _named_inputs(kind: str, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a batch as a model takes it: pixels as words, or images as patches and how many lie along y and x."""
    images, labels = batch.values()
    if kind == "imagegpt":
        return {"input_ids": torch.randint(CONFIGURATION["vocab_size"], (BATCH, 16)), "labels": labels}
    if kind != "siglip2":
        return batch
    patches = images.view(BATCH, 16, -1)
    mask, shapes = torch.ones(BATCH, 16, dtype=torch.int64), torch.full((BATCH, 2), 4)
    return {"pixel_values": patches, "pixel_attention_mask": mask, "spatial_shapes": shapes, "labels": labels}


def parts_of(settings: PretrainedConfig) -> Iterator[PretrainedConfig]:
    """Yield a configuration and those within it."""
    yield settings
    for part in vars(settings).values():
        if isinstance(part, PretrainedConfig):
            yield from parts_of(part)


def make_small(settings: PretrainedConfig, small: Settings) -> None:
    """Give a configuration few layers, heads and elements of each, and no dropout."""
    for name, value in vars(settings).copy().items():
        if name in small and isinstance(value, type(small[name])):
            setattr(settings, name, small[name])
        if name in ("depths", "depth", "layers") and isinstance(value, list | tuple):
            setattr(settings, name, [1] * len(value))
        if "drop" in name and isinstance(value, float):
            setattr(settings, name, 0.0)


def _torchvision(name: str) -> Make:
    extent = {"inception_v3": 299, "alexnet": 96, "maxvit_t": 224}.get(name, EXTENT)
    sizes = {"image_size": EXTENT} if name.startswith("vit") else {}
    module = torchvision.models.get_model(name, weights=None, num_classes=CLASSES, **sizes)
    return WithLoss(without_dropout(module)), _batches(extent)


def _segmentation(name: str) -> Make:
    kinds = {"weights": None, "weights_backbone": None, "num_classes": CLASSES}
    module = torchvision.models.get_model(name, **kinds)
    return WithLoss(without_dropout(module)), _batches(EXTENT, EXTENT, EXTENT)
