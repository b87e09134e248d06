"""Every language model of the auto classes of Hugging Face's `transformers`, small, from its configuration alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from inspect import signature
from typing import Any

import torch
import transformers
from torch import nn
from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig

from results.pytorch_models.sweep import STEPS, Make, Model

VOCABULARY, LENGTH, BATCH, CLASSES = 96, 12, 4, 3
FIRST_WORD = 8
"""Numbers below it stand for the beginning, the end, padding and the like."""

NAMES = transformers.models.auto.modeling_auto

TASKS = {
    "causal": NAMES.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "masked": NAMES.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "seq2seq": NAMES.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    "classification": NAMES.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
}
"""The architectures of each task, by their type."""

OF_TASK: Mapping[str, Mapping[str, Any]] = {
    "seq2seq": {"decoder_start_token_id": 2},
    "classification": {"num_labels": CLASSES, "pad_token_id": 0},
}
"""What all architectures of a task are given."""

SMALL: Mapping[str, float] = {
    r".*vocab_size.*": VOCABULARY,
    r"num_labels": CLASSES,
    r".*drop(out|path|_rate|_prob)?.*|.*_pdrop|layerdrop": 0.0,
    r"(num|n|encoder|decoder|num_encoder|num_decoder|num_hidden)_(hidden_|text_)?layers?|num_blocks|depth": 2,
    r".*(num|n)_(key_value|kv)_heads|num_key_value_groups|.*_num_kv_heads|num_key_value_heads.*": 2,
    r"(.*_)?(num|n)_(attention_|v_|qk_|q_|key_|value_|)heads?|.*attention_heads|.*num_(key|value)_heads": 4,
    r".*head_(dim|size)|d_kv|attention_head_(dim|size)|kv_channels|.*_head_dim.*": 8,
    r"n_routed_experts|(moe_)?num_(local_|routed_)?experts|ffn_num_experts|n_experts|num_moe_experts": 4,
    r".*experts_per_tok(en)?|moe_topk|moe_top_k|num_selected_experts|expert_topk|moe_k|top_k_experts": 2,
    r"n_group|topk_group|n_shared_experts|num_expert_group": 1,
    r".*intermediate_size.*|.*ffn.*(dim|size)|d_ff|n_inner|ffn_hidden_size|.*mlp_hidden.*|d_inner|inner_dim": 64,
    r"hidden_size.*|d_model|n_embd|dim|.*embed(ding)?_(dim|size)|emb_dim|.*embed_proj_dim|attention_dim|lru_width": 32,
    r".*lora_rank|.*_rank|rank": 8,
    r"(max|num)_position_embeddings|n_positions|max_(seq_len|(source|target)_positions|.*seq.*length)|n_ctx": 64,
    r".*sliding_window|attention_window|local_attention|window_size": 8,
    r".*chunk_size|.*chunk_length": 4,
    r".*state_size|d_state|mamba_d_state|ssm_state_size": 8,
}
"""Sizes by the names that configurations have for them; a size that is smaller already stays."""


def models() -> Iterator[Model]:
    """Yield every architecture of every task."""
    for task, names in TASKS.items():
        for kind in names:
            yield Model(f"{task}/{kind}", partial(_model_and_batches, task, kind))


def _model_and_batches(task: str, kind: str) -> Make:
    """Return a model and a batch for every step."""
    architecture = getattr(transformers, TASKS[task][kind])
    config_class = architecture.config_class or CONFIG_MAPPING[kind]
    config = config_class(**small(config_class(), {**SPECIAL.get(kind, {}), **OF_TASK.get(task, {})}))
    if task == "causal" and getattr(config, "is_decoder", None) is False:
        config.is_decoder = True
    module = architecture(config).train()
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        if type(part).__name__ in BY_CHANCE:
            part.eval()
    return module, [batch(task, module) for _ in range(STEPS)]


def small(config: PretrainedConfig, special: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a configuration is made with to be small; `special` is given besides."""
    sizes, given = dict[str, Any](), config.to_dict()
    for name, value in given.items():
        if name in config.sub_configs and isinstance(value, dict):
            sub = config.sub_configs[name]
            kind = getattr(config, name).__class__ if sub is AutoConfig else sub
            sizes[name] = {"model_type": kind.model_type} | small(kind(), special.get(name, {}))
        elif TOKEN.fullmatch(name) and isinstance(value, int):
            sizes[name] = 0 if name == "pad_token_id" else sum(map(bool, map(TOKEN.fullmatch, sizes))) + 1
        elif name in LAYERS and isinstance(value, list):
            sizes[name] = list(dict.fromkeys(value)) if len(set(value)) > 1 else value[:2]
        elif isinstance(value, int | float) and not isinstance(value, bool):
            size = next((size for pattern, size in SMALL.items() if re.fullmatch(pattern, name)), value)
            sizes |= {name: size} if size < value else {}
    if "num_key_value_heads" in sizes and given["num_key_value_heads"] == given.get("num_attention_heads"):
        sizes["num_key_value_heads"] = sizes["num_attention_heads"]
    of_layers = [len(sizes[name]) for name in LAYERS if name in sizes]
    if of_layers and "num_hidden_layers" in sizes:
        sizes["num_hidden_layers"] = of_layers[0]
    return sizes | {name: value for name, value in special.items() if not isinstance(value, dict)}


TOKEN = re.compile(r".*token_(id|index)")
LAYERS = ("layer_types", "layers_block_type", "block_types", "mlp_layer_types")
"""Kinds of layers, one after another: there is one of each, or two of the only kind."""

BY_CHANCE = ("PhimoeTopKRouter",)
"""Modules that draw random numbers as they are trained, which are not the same twice."""

HEAD = {"head_dim": 8}
LATENT = {"num_latents": 8, "d_latents": 32, "num_self_attends_per_block": 2}
SPECIAL: Mapping[str, Mapping[str, Any]] = {
    "bailing_hybrid": {"layer_group_size": 2},
    "bamba": {"attn_layer_indices": [1]},
    "codegen": {"rotary_dim": 4},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "esmc": {"vocab_size": VOCABULARY},
    "gemma3n": {"text_config": {"num_kv_shared_layers": 0}},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "esm": {"vocab_size": VOCABULARY},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "gptj": {"rotary_dim": 4},
    "hunyuan_v1_dense": HEAD,
    "hunyuan_v1_moe": HEAD,
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
    "lilt": {"hidden_size": 48},
    "longcat_flash": {"qk_head_dim": 16},
    "mamba2": {"num_heads": 8},
    "ministral": HEAD,
    "nemotron": {"num_key_value_heads": 2},
    "nemotron_h": {"chunk_size": 128, "n_groups": 1},
    "perceiver": LATENT | {"max_position_embeddings": LENGTH},
    "reformer": {"axial_pos_embds": False},
    "t5": {"decoder_start_token_id": 2},
    "xlstm": {"chunk_size": 64},
    "xmod": {"default_language": "en_XX"},
}
"""What some need besides, by their type."""


def batch(task: str, module: nn.Module) -> dict[str, torch.Tensor]:
    """Return samples of several lengths, filled to one, with the mask that says where they end."""
    names = signature(module.forward).parameters
    tokens = torch.randint(FIRST_WORD, VOCABULARY, (BATCH, LENGTH))
    lengths = torch.randint(LENGTH // 2, LENGTH, (BATCH, 1))
    mask = (torch.arange(LENGTH) < lengths).long()
    end = getattr(module.config, "eos_token_id", None)
    tokens[torch.arange(BATCH), lengths[:, 0] - 1] = end if isinstance(end, int) else FIRST_WORD
    tokens = torch.where(mask.bool(), tokens, 0)
    labels = torch.where(mask.bool(), tokens, -100)
    if task == "classification":
        labels = torch.randint(0, CLASSES, (BATCH,))
    arguments = {"input_ids" if "input_ids" in names else "inputs": tokens, "attention_mask": mask, "labels": labels}
    return {name: value for name, value in arguments.items() if name in names}
