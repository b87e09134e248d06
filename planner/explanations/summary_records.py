"""What a summary of a plan is made of: records that can be written as JSON."""

from __future__ import annotations

from dataclasses import dataclass

from tensor_partitioner.display import Shown


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """Parameters of alike layers that lie alike, with the optimizer's state of them.

    `pattern` is a glob that matches `names`, of `layers` that have a parameter of this name. `dtensor` has an entry
    for each step, and is about the parameter as a module has it; `megatron` and `fsdp` are empty where these engines
    have no word. `held_bytes` and `state_held_bytes` are what the worker with most holds of all of them.
    """

    pattern: str
    names: tuple[str, ...]
    layers: int
    shape: tuple[int, ...]
    dtype: str
    layout: tuple[str, ...]
    split: str
    state_split: str
    dtensor: tuple[str, ...]
    megatron: str
    fsdp: str
    is_contracted: bool
    nbytes: int
    held_bytes: int
    state_held_bytes: int


@dataclass(frozen=True, slots=True)
class OperatorGroup:
    """Nodes of alike layers with one strategy, and the bytes that move for them; `phase`: forward, backward, update."""

    pattern: str
    op: str
    phase: str
    names: tuple[str, ...]
    strategy: tuple[str, ...]
    split: str
    is_contraction: bool
    nbytes: int


@dataclass(frozen=True, slots=True)
class Cause:
    """Why bytes move: `kind` says what for, `layers` which part of the network."""

    kind: str
    layers: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Spent:
    """Predicted seconds of an iteration, of a part of the network or of a level of the machine."""

    what: str
    seconds: float


@dataclass(frozen=True, slots=True, repr=False)
class Summary(Shown):
    """What a plan comes to: `parameters` and `operators` in the order of the model, `causes` most bytes first.

    `held_bytes` and `state_held_bytes` are what the worker that holds most holds of all parameters, and of the
    optimizer's state of them.
    """

    model: str
    workers: int
    ways: tuple[int, ...]
    total_bytes: int
    parameters: tuple[ParameterGroup, ...]
    operators: tuple[OperatorGroup, ...]
    causes: tuple[Cause, ...]
    seconds: tuple[Spent, ...]
    held_bytes: int
    state_held_bytes: int
