"""Checkpoints by `torch.distributed.checkpoint`. Each rank writes its tiles and reads its own, under any plan."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import is_dataclass
from io import BytesIO
from pathlib import Path, PosixPath
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import ReadItem, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save

from executor.checkpoint import KEPT, CheckpointError, first_not_finite, require_agreement, saved_tensors
from executor.torch.optimizers import PlannedUpdates
from executor.torch.tensors import tensor_of
from executor.training import Trainer
from planner.failures import JobError
from planner.graph.ir import entries_of
from planner.layout import Region, local_shape
from planner.layout.region import boxes, coarser, whole

COMPLETE = ".metadata"
"""The file that `torch.distributed.checkpoint` writes last."""

CLASSES: Mapping[str, Any] = {
    f"{kind.__module__}.{kind.__qualname__}": kind
    for kind in (
        *(metadata.Metadata, metadata.TensorStorageMetadata, metadata.BytesStorageMetadata, metadata.StorageMeta),
        *(ChunkStorageMetadata, TensorProperties, MetadataIndex, metadata._MEM_FORMAT_ENCODING),
        *(filesystem._StorageInfo, filesystem._StoragePrefix, torch.serialization._get_layout, PosixPath),
    )
}
"""The classes in a checkpoint's index."""


ADVICE = ": give all ranks the same, or distribute(..., agree=False)"


class Tile(torch.Tensor):
    """This rank's part of a tensor, in the memory that is read and written: a `region` of a whole of some shape.

    It only has the methods with which `torch.distributed.checkpoint` asks tensors for their boxes.
    """

    local: torch.Tensor
    chunks: Mapping[torch.Size, tuple[slice, ...]]

    @staticmethod
    def of(local: torch.Tensor, region: Region, shape: tuple[int, ...]) -> Tile:
        """Return the tile of the local elements of a region."""
        tile: Tile = torch.Tensor._make_wrapper_subclass(Tile, shape, dtype=local.dtype)
        tile.local = local.view(local_shape(region))
        tile.chunks = {
            torch.Size(start for start, _, _ in box): tuple(slice(here, here + size) for _, here, size in box)
            for box in boxes(whole(shape), region, region)
        }
        return tile

    def copied(self) -> Tile:
        """Return a copy of the tile in host memory."""
        tile: Tile = torch.Tensor._make_wrapper_subclass(Tile, self.shape, dtype=self.dtype)
        tile.local, tile.chunks = self.local.to("cpu", copy=True), self.chunks
        return tile

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(offsets, self.local[part].shape) for offsets, part in self.chunks.items()]

    def __create_write_items__(self, name: str, _tensor: object) -> list[WriteItem]:
        properties = TensorProperties(dtype=self.dtype)
        return [
            WriteItem(
                MetadataIndex(name, chunk.offsets),
                WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk, properties, self.shape),
            )
            for chunk in self.__create_chunk_list__()
        ]

    def __get_tensor_shard__(self, index: MetadataIndex) -> torch.Tensor:
        return self.local[self.chunks[index.offset or torch.Size()]]

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Refuse every operator."""
        raise TypeError(f"{function}: a tile can only be saved and loaded")


class TrainingState:
    """The state of training, as PyTorch's checkpoints take it: weights, optimizer states and the optimizer's groups."""

    def __init__(self, trainer: Trainer, updates: PlannedUpdates | None) -> None:
        self.steps = 0
        self._trainer = trainer
        self._updates = updates

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's tiles, in the memory that is trained, by PyTorch's names."""
        graph, updates = self._trainer.graph, self._updates.updates if self._updates else ()
        weights = {name: entry for name, entry in entries_of(graph).items() if entry.tensor is not None}
        held = {entry.tensor for entry in weights.values()}
        states = {
            update.name: {
                name: self._tile(tensor, weights[update.name].shape) for name, tensor in update.states.items()
            }
            for update in updates
        }
        held |= {tensor for update in updates for tensor in update.states.values()}
        return {
            "model": {name: self._tile(str(entry.tensor), entry.shape) for name, entry in weights.items()},
            "optimizer": {"state": states, "param_groups": self._updates.groups if self._updates else []},
            "others": {name: self._tile(name, graph.tensors[name].shape) for name in graph.updates if name not in held},
            "steps": self.steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the values that are not tiles. Tiles have been read in place."""
        self.steps = state["steps"]
        if self._updates is not None:
            self._updates.resume(self.steps, state["optimizer"]["param_groups"])

    def _tile(self, name: str, shape: tuple[int, ...]) -> Tile:
        trainer = self._trainer
        region = trainer.programs.training.regions[name][trainer.cluster.rank]
        return Tile.of(tensor_of(trainer.view(name)), coarser(region, trainer.graph.tensors[name].shape, shape), shape)


class _Copies(AsyncStager):
    """Copies the saved state to host memory, so that training can go on while it is written."""

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Return the state with copied tiles."""
        return {name: self._copied(value) for name, value in state_dict.items()}

    def _copied(self, value: Any) -> Any:
        return self.stage(value) if isinstance(value, dict) else value.copied() if isinstance(value, Tile) else value

    def synchronize_staging(self) -> None:
        """Do nothing: copies are complete."""

    def close(self) -> None:
        """Do nothing: nothing is open."""


READS: Mapping[int, Any] = pickle._Unpickler.dispatch
"""What a pickle's operations do, by their codes."""


class _Index(pickle._Unpickler):
    """Reads `.metadata`, which may contain descriptions of tensors but no other code."""

    stack: list[Any]

    def load(self) -> Metadata:
        """Return the index. Raises UnpicklingError if it names files outside its folder."""
        index: Metadata = super().load()
        if away := [of.relative_path for of in index.storage_data.values() if "/" in of.relative_path]:
            raise pickle.UnpicklingError(f"expected files of this folder, found {away[0]}")
        return index

    def set_state(self) -> None:
        """Set the fields of a description. Raises UnpicklingError for a class, which this process uses elsewhere."""
        if not is_dataclass(type(self.stack[-2])):
            raise pickle.UnpicklingError(f"expected fields of descriptions, found fields of {self.stack[-2]!r}")
        READS[pickle.BUILD[0]](self)

    dispatch: ClassVar[dict[int, Any]] = {**READS, pickle.BUILD[0]: set_state}

    def find_class(self, module: str, name: str) -> Any:
        """Return a class of an index. Raises UnpicklingError for anything else."""
        known: Any = getattr(torch, name, None) if module == "torch" else CLASSES.get(f"{module}.{name}")
        if module == "torch" and not (isinstance(known, torch.dtype) or known is torch.Size):
            known = None
        if known is None:
            raise pickle.UnpicklingError(f"expected descriptions of tensors, found {module}.{name}")
        return known


class _Reader(filesystem.FileSystemReader):
    """Reads a checkpoint's folder without running any code that it names."""

    def read_metadata(self, *_args: Any, **_options: Any) -> Metadata:
        """Return the folder's index. Raises CheckpointError if it is damaged or names code."""
        path = Path(self.path) / COMPLETE
        try:
            with path.open("rb") as file:
                index = _Index(file).load()
            index.storage_meta = index.storage_meta or metadata.StorageMeta()
            index.storage_meta.load_id = self.load_id
        except Exception as error:  # any kind, depending on the damage
            raise CheckpointError(f"{path}: {str(error).partition(chr(10))[0]}: remove its folder") from error
        return index


class _Values(DefaultLoadPlanner):
    """Reads values that are not tensors with `torch.load` in its safe mode."""

    def load_bytes(self, read_item: ReadItem, value: BytesIO) -> None:
        """Load a value. Raises UnpicklingError if it names code that `torch.serialization` does not consider safe."""
        data, safe = torch.load(value, weights_only=True), BytesIO()
        torch.save(data, safe)
        safe.seek(0)
        super().load_bytes(read_item, safe)


class Checkpoints:
    """Checkpoints of one training in folders `step-N`, written while training goes on. All methods are collective.

    All ranks must see the folders. A folder without `.metadata` is incomplete and is ignored.
    """

    def __init__(self, state: TrainingState, trainer: Trainer, agree: bool) -> None:
        self._state = state
        self._trainer = trainer
        self._cluster = trainer.cluster
        self._agree = agree
        self._group: Any = dist.new_group(backend="gloo")
        self._saving: Future[Any] | None = None

    def save(self, folder: Path, others: Mapping[str, Any]) -> Future[Any]:
        """Start writing a checkpoint of this step after the previous one is written. The last two are kept.

        Raises JobError if a value is not finite, and SharedError if replicas differ between ranks.
        """
        self.wait()
        changed = [tensor.name for tensor in saved_tensors(self._trainer.graph)]
        if fault := first_not_finite(self._trainer, changed):
            raise JobError(f"step {self._state.steps}: {fault} is not finite: no checkpoint is written")
        if self._agree:
            require_agreement(self._trainer, {"steps": str(self._state.steps)}, ADVICE)
        if self._cluster.rank == 0:
            for old in complete(folder)[: 1 - KEPT]:
                shutil.rmtree(old)
        saving: Any = async_save(
            {"training": self._state, **others},
            checkpoint_id=folder / f"step-{self._state.steps:08}",
            process_group=self._group,
            async_stager=_Copies(),
        )
        self._saving = saving
        return self._saving

    def wait(self) -> None:
        """Wait for the checkpoint that is being written. Raises its errors."""
        if self._saving is not None:
            self._saving.result()

    def resume(self, folder: Path, others: Mapping[str, Any]) -> int:
        """Resume from a folder's last complete checkpoint. Return the steps done, 0 if there is none."""
        self.wait()
        last = self._cluster.broadcast(complete(folder)[-1:])
        for path in last:
            load(
                {"training": self._state, **others},
                storage_reader=_Reader(path),
                planner=_Values(),
                process_group=self._group,
            )
        return self._state.steps


def complete(folder: Path) -> list[Path]:
    """Return the complete checkpoints of a folder, ordered by step."""
    return sorted(path.parent for path in folder.glob(f"step-*/{COMPLETE}"))
