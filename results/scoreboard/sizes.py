"""How large the model of a row is, and how many operations training it takes: counted here, not by the predictor."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from results.scoreboard.cells import SetError
from results.scoreboard.row import Row

FILE = Path(__file__).with_name("sizes.yaml")
DEFAULT_SEQUENCE, DEFAULT_VOCABULARY, USUALLY_CHOSEN = 2048, 51200, 2


@dataclass(frozen=True, slots=True)
class Size:
    """Extents of a transformer; a fully connected layer of the kind "llama" has three matrices, else two.

    A head is `head_size` wide, 0 for heads that share the width. Of several `experts` a token passes those `chosen`.
    """

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocabulary: int
    sequence: int
    tied: bool
    head_size: int = 0
    experts: int = 1
    chosen: int = USUALLY_CHOSEN

    @property
    def head_width(self) -> int:
        """How wide a head is."""
        return self.head_size or self.hidden // self.heads

    @property
    def layer_weights(self) -> int:
        """Elements of a layer's matrices that a token passes."""
        attention = 2 * self.hidden * self.head_width * (self.heads + self.kv_heads)
        passed = self.chosen if self.experts > 1 else 1
        return attention + passed * (3 if self.architecture == "llama" else 2) * self.hidden * self.ffn

    @property
    def scores_flop(self) -> int:
        """Operations of a layer's scores and of what they weight, forward, of a sample; no causality is spared."""
        return 4 * self.sequence**2 * self.heads * self.head_width

    def model_flop(self, samples: int) -> int:
        """Operations of products in a step: forward and twice as many backward (Narayanan et al., 2021, Sec 5.1)."""
        layer = 2 * self.sequence * self.layer_weights + self.scores_flop
        return 3 * samples * (self.layers * layer + 2 * self.sequence * self.hidden * self.vocabulary)

    def hardware_flop(self, samples: int, recompute: str | None) -> int:
        """The same with what is computed again: all layers' forward, or that of their scores."""
        layer = 2 * self.sequence * self.layer_weights + self.scores_flop
        again = {"full": layer, "selective": self.scores_flop}.get(recompute or "none", 0)
        return self.model_flop(samples) + samples * self.layers * again


def compact(name: str) -> str:
    """Return a model's name as names are compared: "meta-llama/Llama-3.1-8B" is "llama3.18b"."""
    return re.sub(r"[^a-z0-9.]", "", name.rpartition("/")[2].lower())


@cache
def known_sizes() -> dict[str, Size]:
    """Return the published sizes by their names."""
    entries = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    sizes: dict[str, Size] = {}
    for entry in entries:
        for name in entry["names"]:
            if compact(name) in sizes:
                raise ValueError(f"{FILE}: {name!r} would mean two models")
            sizes[compact(name)] = _size(entry["size"])
    return sizes


def _size(entry: list[Any]) -> Size:
    architecture, layers, hidden, heads, kv_heads, ffn, vocabulary, sequence, tied, *further = entry
    extents = architecture, layers, hidden, heads, kv_heads or heads, ffn or 4 * hidden
    return Size(*extents, vocabulary, sequence, tied, *further)


def size_of(row: Row) -> Size | None:
    """Return a row's size: what it says, the rest as published; None for a model that is not described by sizes.

    Raises SetError for sizes that are not said, or that fit no transformer.
    """
    known = known_sizes().get(compact(row.model)) if row.model else None
    if known is None and (row.layers is None or row.hidden is None):
        if row.layers is not None or row.hidden is not None:
            missing = "hidden" if row.hidden is None else "layers"
            raise SetError(f"expected {missing} beside the other sizes, found none")
        return None
    size = _changed(known, row) if known else _described(row)
    if size.head_width * size.heads == size.hidden:
        size = replace(size, head_size=0)
    if (size.hidden % size.heads and not size.head_size) or size.heads % size.kv_heads:
        raise SetError(f"expected heads that divide {size.hidden}, found {size.heads} and {size.kv_heads} of keys")
    return size


def _changed(known: Size, row: Row) -> Size:
    said = {field.name: value for field in fields(Size) if (value := getattr(row, field.name)) is not None}
    if said.get("hidden", known.hidden) != known.hidden:
        said.setdefault("ffn", 4 * said["hidden"] if known.ffn == 4 * known.hidden else known.ffn)
    if "heads" in said and known.kv_heads == known.heads:
        said.setdefault("kv_heads", said["heads"])
    return replace(known, **said)


def _described(row: Row) -> Size:
    assert row.layers is not None
    assert row.hidden is not None
    heads = row.heads or max(1, row.hidden // (64 if row.hidden < 4096 else 128))
    grouped = row.kv_heads is not None and row.kv_heads != heads
    architecture = row.architecture or ("llama" if grouped else "gpt")
    ffn = row.ffn or (_swiglu(row.hidden) if architecture == "llama" else 4 * row.hidden)
    return Size(
        architecture, row.layers, row.hidden, heads, row.kv_heads or heads, ffn, row.vocabulary or DEFAULT_VOCABULARY,
        row.sequence or DEFAULT_SEQUENCE, architecture != "llama" if row.tied is None else row.tied, row.head_size or 0,
        row.experts or 1, row.chosen or USUALLY_CHOSEN,
    )  # fmt: skip


def _swiglu(hidden: int) -> int:
    """Return two thirds of 4 hidden, up to a multiple of 256 (Touvron et al., 2023)."""
    return -(-8 * hidden // 3 // 256) * 256
