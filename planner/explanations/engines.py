"""What DTensor, Megatron-LM and FSDP call the way in which a parameter is split, where they have a word for it.

What a parameter is split for says who computes with it: where its reader is split along with it, that is tensor
parallelism; where its reader is split along the samples, it is gathered first, as FSDP does.
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.explanations.causes import is_copy_of_weights
from planner.explanations.words import CONVOLUTION, POSITIONS, SAMPLES, Words, over_ways
from planner.graph.entries import groups
from planner.graph.ir import Entry, Node
from planner.layout import PARTIAL, REPLICATE, Placement, Shard
from planner.plans.plan import Plan

COLUMN_PARALLEL, ROW_PARALLEL = "ColumnParallelLinear", "RowParallelLinear"
EMBEDDING_PARALLEL = "VocabParallelEmbedding"
FULLY_SHARDED, STATE_SHARDED, DATA_PARALLEL = "FSDP fully_shard", "ZeRO-1", "DDP"


class Engines:
    """The words of other engines for the parameters of a plan."""

    def __init__(self, plan: Plan, words: Words, states: Mapping[str, tuple[str, ...]]) -> None:
        self._plan, self._words, self._states = plan, words, states
        self._entries = {entry.tensor: entry for entry in plan.graph.entries.values() if entry.tensor is not None}

    def dtensor(self, weight: str) -> tuple[str, ...]:
        """Return DTensor's placements, one for each step, of a parameter as its module has it."""
        return tuple(self._placement(weight, placement) for placement in self._plan.layouts[weight])

    def _placement(self, weight: str, placement: Placement) -> str:
        if not isinstance(placement, Shard):
            return {REPLICATE: "Replicate()", PARTIAL: "Partial()"}.get(placement, "")
        shape, entry = self._plan.graph.tensors[weight].shape, self._entries.get(weight)
        grouped = groups(entry.shape, shape) if isinstance(entry, Entry) else None
        if grouped is None:
            return f"Shard({placement.dim})"
        dim, axes = next((dim, axes) for dim, axes in enumerate(grouped) if placement.dim in axes)
        is_outermost = all(shape[axis] == 1 for axis in axes[: axes.index(placement.dim)])
        return f"Shard({dim})" if is_outermost else f"_StridedShard({dim})"

    def megatron(self, weight: str) -> str:
        """Return the layer of Megatron-LM that splits a weight so; empty where no step is tensor parallel."""
        return self._joined([self._layer(weight, step) for step in range(len(self._plan.ways))])

    def fsdp(self, weight: str) -> str:
        """Return what data parallelism with sharding calls it; empty where no step splits the samples."""
        return self._joined([self._sharding(weight, step) for step in range(len(self._plan.ways))])

    def _joined(self, words: list[str]) -> str:
        """Write the words of all steps that have one; the ways only where others have none."""
        named = [(word, way) for word, way in zip(words, self._plan.ways, strict=True) if word]
        if len({word for word, _ in named}) == 1 and len(named) == len(words):
            return named[0][0]
        return over_ways([word for word, _ in named], [way for _, way in named]) if named else ""

    def _layer(self, weight: str, step: int) -> str:
        placement = self._plan.layouts[weight][step]
        name, reader = self.read_by(weight)
        if reader is None or not isinstance(placement, Shard) or self._plan.layouts[name][step] != placement:
            return ""
        variable, choice = (
            self._words.variable_of(reader, name, placement.dim),
            self._plan.strategies[reader.name][step],
        )
        if variable is None or variable != choice or not self._words.contracts(reader):
            return ""
        if self._words.looks_up(reader, variable):
            return EMBEDDING_PARALLEL
        signature = self._words.signatures[reader.name]
        if signature.category == CONVOLUTION or any(self._words.looks_up(reader, name) for name in signature.extents):
            return ""
        return ROW_PARALLEL if variable in signature.description.reduction_variables else COLUMN_PARALLEL

    def _sharding(self, weight: str, step: int) -> str:
        placement, (_, reader) = self._plan.layouts[weight][step], self.read_by(weight)
        if reader is None or self._words.of_choice(reader, self._plan.strategies[reader.name][step]) not in (
            SAMPLES,
            POSITIONS,
        ):
            return ""
        if isinstance(placement, Shard):
            return FULLY_SHARDED
        if placement != REPLICATE:
            return ""
        states = [self._plan.layouts[state][step] for state in self._states.get(weight, ())]
        return STATE_SHARDED if states and all(isinstance(state, Shard) for state in states) else DATA_PARALLEL

    def read_by(self, weight: str) -> tuple[str, Node | None]:
        """Return what the first operator reads that computes with a weight, the weight or a copy, and the operator."""
        name = weight
        while (reader := next(iter(self._words.readers(name)), None)) and is_copy_of_weights(reader, self._words):
            name = reader.outputs[0]
        return name, reader
