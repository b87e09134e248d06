"""Architectures of Hugging Face's `transformers`, built small from their configurations; nothing is downloaded.

    plan examples/transformers_models.py:llama --workers 8

A model is called with named inputs, labels among them, and returns its loss with the rest of what it computes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers
from torch import nn
from transformers.models.bloom.modeling_bloom import BloomGelu, bloom_gelu_forward

VOCABULARY, WIDTH, HEADS, LAYERS, TOKENS, CLASSES = 96, 32, 4, 2, 12, 5
BATCH = 8

ModelAndInputs = tuple[nn.Module, dict[str, torch.Tensor]]
"""A module and its inputs by name."""

SIZES = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "num_hidden_layers": LAYERS, "vocab_size": VOCABULARY}
DECODER = SIZES | {"intermediate_size": 64, "max_position_embeddings": 64}
GROUPED = DECODER | {"num_key_value_heads": 2}
QUIET = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
ENCODER = DECODER | QUIET


def _numbers(below: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, below, shape)


def language_model(name: str, *, batch: int = BATCH, length: int = TOKENS, **sizes: Any) -> ModelAndInputs:
    """Return a model that predicts each token from those before it."""
    model = _built("GPT2LMHeadModel" if name == "GPT2" else f"{name}ForCausalLM", name, sizes)
    tokens = _numbers(VOCABULARY, batch, length)
    return model, {"input_ids": tokens, "labels": tokens}


def masked_model(name: str, *, batch: int = BATCH, **sizes: Any) -> ModelAndInputs:
    """Return a model that predicts tokens from all around them."""
    model = _built(f"{name}ForMaskedLM", name, sizes)
    return model, {"input_ids": _numbers(VOCABULARY, batch, TOKENS), "labels": _numbers(VOCABULARY, batch, TOKENS)}


def translation(name: str, *, batch: int = BATCH, **sizes: Any) -> ModelAndInputs:
    """Return a model that writes a sequence from another."""
    model = _built(f"{name}ForConditionalGeneration", name, sizes)
    return model, {"input_ids": _numbers(VOCABULARY, batch, TOKENS), "labels": _numbers(VOCABULARY, batch, 8)}


def image_model(name: str, *, batch: int = BATCH, extent: int = 32, **sizes: Any) -> ModelAndInputs:
    """Return a model that classifies images."""
    model = _built(f"{name}ForImageClassification", name, {"num_labels": CLASSES} | sizes)
    return model, {"pixel_values": torch.randn(batch, 3, extent, extent), "labels": _numbers(CLASSES, batch)}


def segmentation(name: str, *, batch: int = BATCH, extent: int = 32, **sizes: Any) -> ModelAndInputs:
    """Return a model that classifies every pixel."""
    model = _built(f"{name}ForSemanticSegmentation", name, {"num_labels": CLASSES} | sizes)
    images, labels = torch.randn(batch, 3, extent, extent), _numbers(CLASSES, batch, extent, extent)
    return model, {"pixel_values": images, "labels": labels}


def speech_model(name: str, *, batch: int = BATCH, **sizes: Any) -> ModelAndInputs:
    """Return a model that classifies recordings."""
    model = _built(f"{name}ForSequenceClassification", name, {"num_labels": CLASSES} | sizes)
    return model, {"input_values": torch.randn(batch, 400), "labels": _numbers(CLASSES, batch)}


def _built(kind: str, name: str, sizes: dict[str, Any]) -> nn.Module:
    configuration = getattr(transformers, f"{name}Config")(**sizes)
    return getattr(transformers, kind)(configuration).train()


def bloom(*, batch: int = BATCH) -> ModelAndInputs:
    """Return Bloom with a GELU of PyTorch's operators: its own has a gradient of its own, which no trace has."""
    sizes = {"hidden_size": WIDTH, "n_head": HEADS, "n_layer": LAYERS, "vocab_size": VOCABULARY}
    model, inputs = language_model("Bloom", batch=batch, **sizes)
    for part in model.modules():
        if isinstance(part, BloomGelu):
            part.forward = bloom_gelu_forward
    return model, inputs


gpt2 = partial(
    language_model, "GPT2", n_embd=WIDTH, n_head=HEADS, n_layer=LAYERS, n_positions=64, vocab_size=VOCABULARY,
    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
)  # fmt: skip
llama = partial(language_model, "Llama", **GROUPED)
mistral = partial(language_model, "Mistral", **GROUPED)
qwen2 = partial(language_model, "Qwen2", **GROUPED)
gemma = partial(language_model, "Gemma", **GROUPED, head_dim=8)
phi = partial(language_model, "Phi", **DECODER)
gpt_neox = partial(language_model, "GPTNeoX", **DECODER)
opt = partial(
    language_model, "OPT", **SIZES, ffn_dim=64, max_position_embeddings=64, word_embed_proj_dim=WIDTH, dropout=0.0
)
mixtral = partial(language_model, "Mixtral", **GROUPED, num_local_experts=4, num_experts_per_tok=2)
mamba = partial(
    language_model, "Mamba", length=6, hidden_size=WIDTH, num_hidden_layers=LAYERS, vocab_size=VOCABULARY, state_size=8,
)  # fmt: skip

bert = partial(masked_model, "Bert", **ENCODER)
roberta = partial(masked_model, "Roberta", **ENCODER)
electra = partial(masked_model, "Electra", **ENCODER, embedding_size=16)
albert = partial(masked_model, "Albert", **ENCODER, embedding_size=16)
distilbert = partial(
    masked_model, "DistilBert", dim=WIDTH, n_heads=HEADS, n_layers=LAYERS, hidden_dim=64, vocab_size=VOCABULARY,
    max_position_embeddings=64, dropout=0.0, attention_dropout=0.0,
)  # fmt: skip

bart = partial(
    translation, "Bart", d_model=WIDTH, encoder_layers=LAYERS, decoder_layers=LAYERS, encoder_attention_heads=HEADS,
    decoder_attention_heads=HEADS, encoder_ffn_dim=64, decoder_ffn_dim=64, vocab_size=VOCABULARY,
    max_position_embeddings=64, dropout=0.0,
)  # fmt: skip
t5 = partial(
    translation, "T5", d_model=WIDTH, d_kv=8, d_ff=64, num_layers=LAYERS, num_heads=HEADS, vocab_size=VOCABULARY,
    dropout_rate=0.0, decoder_start_token_id=0,
)  # fmt: skip

_VIT = QUIET | {
    "hidden_size": WIDTH, "num_attention_heads": HEADS, "num_hidden_layers": LAYERS, "intermediate_size": 64,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip
vit = partial(image_model, "ViT", **_VIT)
deit = partial(image_model, "DeiT", **_VIT)
resnet = partial(image_model, "ResNet", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
convnext = partial(image_model, "ConvNext", hidden_sizes=[8, 16], depths=[1, 1], num_stages=2)
swin = partial(
    image_model, "Swin", image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4,
    drop_path_rate=0.0, **QUIET,
)  # fmt: skip
mobilenet_v2 = partial(image_model, "MobileNetV2", image_size=32, depth_multiplier=0.25, classifier_dropout_prob=0.0)
segformer = partial(
    segmentation, "Segformer", num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[16, 32],
    patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[2, 4], mlp_ratios=[2, 2], decoder_hidden_size=32,
    drop_path_rate=0.0, classifier_dropout_prob=0.0, **QUIET,
)  # fmt: skip
wav2vec2 = partial(
    speech_model, "Wav2Vec2", **ENCODER, hidden_dropout=0.0, attention_dropout=0.0, activation_dropout=0.0,
    feat_proj_dropout=0.0, final_dropout=0.0, layerdrop=0.0, mask_time_prob=0.0, conv_dim=[16, 16],
    conv_stride=[5, 2], conv_kernel=[10, 3], num_feat_extract_layers=2, num_conv_pos_embeddings=4,
    num_conv_pos_embedding_groups=2, classifier_proj_size=16,
)  # fmt: skip


def large_language_model(name: str, vocabulary: int, *, batch: int = 8, **sizes: int) -> ModelAndInputs:
    """Return a model of the sizes that LLaMA 3's 8B and Mixtral 8x7B have in common, and samples of 2048 tokens."""
    sizes |= {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "vocab_size": vocabulary,
    }  # fmt: skip
    tokens = _numbers(vocabulary, batch, 2048)
    return _built(f"{name}ForCausalLM", name, sizes), {"input_ids": tokens, "labels": tokens}


llama_3_8b = partial(large_language_model, "Llama", 128256, max_position_embeddings=8192)
mixtral_8x7b = partial(
    large_language_model, "Mixtral", 32000, max_position_embeddings=32768, num_local_experts=8, num_experts_per_tok=2,
)  # fmt: skip


resnet_152 = partial(image_model, "ResNet", batch=32, extent=224, depths=[3, 8, 36, 3], num_labels=1000)

ARCHITECTURES: dict[str, Callable[..., ModelAndInputs]] = {
    "gpt2": gpt2, "llama": llama, "mistral": mistral, "qwen2": qwen2, "gemma": gemma, "phi": phi,
    "gpt_neox": gpt_neox, "opt": opt, "bloom": bloom, "mixtral": mixtral, "bert": bert, "roberta": roberta,
    "distilbert": distilbert, "electra": electra, "albert": albert, "bart": bart, "vit": vit, "resnet": resnet,
    "convnext": convnext, "swin": swin, "deit": deit, "mobilenet_v2": mobilenet_v2, "mamba": mamba,
    "segformer": segformer, "t5": t5, "wav2vec2": wav2vec2,
}  # fmt: skip
"""By name."""
