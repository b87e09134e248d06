"""Language models by their configurations on the Hugging Face Hub: `hf:ORG/NAME` from a table, or a config.json.

Supported are models with the layers of Llama, Mixtral, DeepSeek or GPT-2, and these variations: biases of queries, keys
and values (Qwen 2), norms of queries and keys (Qwen 3), GELU in place of SiLU (Gemma). Layers that predict further
tokens (DeepSeek-V3) are left out; Llama 4's attention has no chunks and no norms.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated

import msgspec

from planner.errors import GraphError
from planner.graph.ir import Graph
from planner.models import llama, sequences
from tensor_partitioner.display import nearest
from topologies.reading import read_bytes

PREFIX = "hf:"
PATTERN = rf"({PREFIX}\S+|(?:.*[/_-])?config\.json)"
TABLE = Path(__file__).with_name("huggingface.yaml")

GPT2, LLAMA4, DEEPSEEK = "gpt2", "llama4_text", ("deepseek_v2", "deepseek_v3", "kimi_k2")
KINDS = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "phi3", "gemma", LLAMA4, *DEEPSEEK, GPT2)
"""Supported values of `model_type`."""

SEQUENCE = 4096
"""Default tokens per sample, unless the model has fewer positions."""

GPT2_POSITIONS, ROPE_BASE, CHOSEN = 1024, 1e4, 2
"""Defaults as in Transformers: positions, base of rotary positions, experts per token."""

QK_NORMS = ("qwen3", "qwen3_moe")

_VARIANT = re.compile(r"-(hf|instruct|chat|base|it)$")

Count = Annotated[int, msgspec.Meta(ge=1, le=10**9)]
Natural = Annotated[int, msgspec.Meta(ge=0, le=10**9)]


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a config.json that a training graph depends on, under their names there; others are ignored."""

    model_type: str | None = None
    text_config: object = None
    num_hidden_layers: Count | None = None
    hidden_size: Count | None = None
    num_attention_heads: Count | None = None
    num_key_value_heads: Count | None = None
    head_dim: Count | None = None
    intermediate_size: Count | None = None
    moe_intermediate_size: Count | None = None
    num_local_experts: Count | None = None
    num_experts: Count | None = None
    num_experts_per_tok: Count | None = None
    n_routed_experts: Count | None = None
    n_shared_experts: Natural | None = None
    first_k_dense_replace: Natural = 0
    interleave_moe_layer_step: Count = 1
    intermediate_size_mlp: Count | None = None
    q_lora_rank: Natural | None = None
    kv_lora_rank: Count | None = None
    qk_nope_head_dim: Count | None = None
    qk_rope_head_dim: Count | None = None
    v_head_dim: Count | None = None
    vocab_size: Count | None = None
    max_position_embeddings: Count | None = None
    tie_word_embeddings: bool | None = None
    attention_bias: bool | None = None
    rope_theta: Annotated[float, msgspec.Meta(gt=0)] | None = None
    n_layer: Count | None = None
    n_embd: Count | None = None
    n_head: Count | None = None
    n_inner: Count | None = None
    n_positions: Count | None = None


class Depths(Mapping[str, int]):
    """The number of layers of each model in the table, by name."""

    def __getitem__(self, name: str) -> int:
        return size_of(name).layers

    def __iter__(self) -> Iterator[str]:
        return (f"{PREFIX}{name}" for name in _table())

    def __len__(self) -> int:
        return len(_table())


def is_other(name: str) -> bool:
    """Return True for a config.json of a model type that only its own package builds."""
    path = Path(name.removeprefix(PREFIX))
    if not name.startswith(PREFIX) or path.suffix != ".json" or not path.is_file():
        return False
    return _file(path).model_type not in {None, *KINDS}


def build(name: str, options: llama.Experts) -> Graph:
    """Return the training graph of a configuration; raise GraphError if it is missing or of another type."""
    size = replace(size_of(name), **options.chosen)
    if isinstance(size, sequences.GptSize):
        return sequences.training(size, options)
    return llama.training(size, options, options.capacity)


def size_of(name: str) -> llama.LlamaSize | sequences.GptSize:
    """Return the sizes of a model: `hf:ORG/NAME`, `hf:path/config.json` or path/to/config.json."""
    text = name.removeprefix(PREFIX)
    config = _file(Path(text)) if text.endswith(".json") else _known(text)
    if config.model_type not in KINDS:
        several = "" if config.text_config is None else " with a text_config: multimodal models are not supported"
        raise GraphError(f"{name}: expected model_type {', '.join(KINDS)}, found {config.model_type!r}{several}")
    try:
        return _gpt(config) if config.model_type == GPT2 else _llama(config)
    except _FieldError as error:
        raise GraphError(f"{name}: {error}") from error


def pattern_of(name: str) -> tuple[int, int]:
    """Return the number of leading layers without experts, and the period of those that have them."""
    size = size_of(name)
    return (size.dense, size.step) if isinstance(size, llama.LlamaSize) else (0, 1)


class _FieldError(Exception):
    """An error in a field of a configuration."""


def _given(config: Configuration, field: str) -> int:
    value = getattr(config, field)
    if value is None:
        raise _FieldError(f"the field {field} is missing")
    return int(value)


def _require(holds: bool, field: str, expected: str, value: object) -> None:
    if not holds:
        raise _FieldError(f"{field}: expected {expected}, found {value}")


def _gpt(config: Configuration) -> sequences.GptSize:
    layers, width, heads, vocabulary = (_given(config, f) for f in ("n_layer", "n_embd", "n_head", "vocab_size"))
    _require(width % heads == 0, "n_embd", f"a multiple of the {heads} heads", width)
    _require(config.n_inner in {None, 4 * width}, "n_inner", f"{4 * width}, four times the width", config.n_inner)
    tied = config.tie_word_embeddings is not False
    return sequences.GptSize(layers, width, heads, vocabulary, config.n_positions or GPT2_POSITIONS, tied=tied)


def _llama(config: Configuration) -> llama.LlamaSize:
    heads, width = _given(config, "num_attention_heads"), _given(config, "hidden_size")
    experts = config.num_local_experts or config.num_experts or config.n_routed_experts or 0
    is_narrow = experts and config.moe_intermediate_size is not None
    hidden = _given(config, "moe_intermediate_size" if is_narrow else "intermediate_size")
    groups, chosen, head = config.num_key_value_heads or heads, config.num_experts_per_tok or CHOSEN, config.head_dim
    latent = _latent(config) if config.model_type in DEEPSEEK else None
    if latent is not None:
        plain = _given(config, "qk_nope_head_dim")
        _require(plain in llama.HEAD_WIDTHS, "qk_nope_head_dim", "an even width", plain)
        head = latent.rotated + plain
    _require(
        head is not None or width % (2 * heads) == 0, "hidden_size", f"a multiple of twice the {heads} heads", width
    )
    _require(head is None or head in llama.HEAD_WIDTHS, "head_dim", "an even width", head)
    _require(heads % groups == 0, "num_key_value_heads", f"a divisor of the {heads} heads", groups)
    _require(not experts or chosen <= experts, "num_experts_per_tok", f"at most the {experts} experts", chosen)
    return llama.LlamaSize(
        layers=_given(config, "num_hidden_layers"), width=width, heads=heads, groups=groups, hidden=hidden,
        vocabulary=_given(config, "vocab_size"), sequence=min(SEQUENCE, config.max_position_embeddings or SEQUENCE),
        base=config.rope_theta or ROPE_BASE, experts=experts, chosen=chosen, head=head or 0, latent=latent,
        tied=config.model_type == "gemma" if config.tie_word_embeddings is None else config.tie_word_embeddings,
        qkv_bias=bool(config.attention_bias) or config.model_type == "qwen2", qk_norm=config.model_type in QK_NORMS,
        activation="gelu" if config.model_type == "gemma" else "silu",
        dense=config.first_k_dense_replace if experts else 0, step=config.interleave_moe_layer_step,
        dense_hidden=(config.intermediate_size_mlp or _given(config, "intermediate_size")) if experts else 0,
        shared=hidden * (1 if config.model_type == LLAMA4 else config.n_shared_experts or 0),
    )  # fmt: skip


def _latent(config: Configuration) -> llama.Latent:
    rotated = _given(config, "qk_rope_head_dim")
    _require(rotated % 2 == 0, "qk_rope_head_dim", "an even width", rotated)
    return llama.Latent(config.q_lora_rank or 0, _given(config, "kv_lora_rank"), rotated, _given(config, "v_head_dim"))


def _file(path: Path) -> Configuration:
    try:
        return msgspec.json.decode(read_bytes(path), type=Configuration)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise GraphError(f"{path}: not a config.json of a language model: {error}") from error


@cache
def _table() -> Mapping[str, Configuration]:
    return msgspec.yaml.decode(TABLE.read_bytes(), type=dict[str, Configuration])


@cache
def _by_normalized() -> Mapping[str, Configuration]:
    return {_normalized(known): config for known, config in _table().items()}


def _known(name: str) -> Configuration:
    if (config := _by_normalized().get(_normalized(name))) is None:
        raise GraphError(f"{PREFIX}{name}: unknown model (pass a config.json instead){nearest(name, _table())}")
    return config


def _normalized(name: str) -> str:
    """Return a name in lower case and without suffixes of variants that have the same sizes."""
    text = name.lower().replace("/meta-llama-", "/llama-")
    while (shorter := _VARIANT.sub("", text)) != text:
        text = shorter
    return text
