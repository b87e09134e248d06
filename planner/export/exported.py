"""A plan for another engine: placements by name, the bytes that it will move, and what it cannot do."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from planner.errors import PlanError
from planner.explanations.accounts import OPERATOR, bytes_by, flows
from planner.export.targets import Engine, Mesh, Target, joined, mesh_of, mesh_target, only, split_once, uneven_split
from planner.graph.ir import Graph, entries_of, groups
from planner.grouping import summed
from planner.layout import EVERYWHERE, PARTIAL, TERMS, Layout, signatures
from planner.layout.ways import STAGES
from planner.parallel import Parallel
from planner.plans.plan import Plan
from tensor_partitioner import display
from tensor_partitioner.display import Shown, exact_bytes, facts, grid, table

RECURRENT = re.compile(r"(.*)\.weight_ih_l\d+(_reverse)?")
"""Names of weights that only PyTorch's recurrent layers have."""

ADVICE = "plan with other --ways, or change the extent"

NUMBER = re.compile(r"\.\d+$")


@dataclass(frozen=True, slots=True)
class PlacedTensor:
    """A tensor of the user's model: its shape, and its placement on every axis of the mesh."""

    shape: tuple[int, ...]
    placements: Layout


@dataclass(frozen=True, slots=True)
class Kind:
    """The nodes of one operator: their number, the bytes they move in the plan and in the target, and the reason."""

    nodes: int
    plan_bytes: int
    target_bytes: int
    why: str


@dataclass(frozen=True, slots=True, repr=False)
class Exported(Shown):
    """A plan for another engine.

    `parameters` and `data` are by name. `outputs` are those of submodules by path, with the graph's dimensions, which
    may be finer. `notes` give, by parameter, what differs from the plan. `kinds` are by operator.
    """

    plan: Plan
    target: Target
    mesh: Mesh
    parameters: Mapping[str, PlacedTensor]
    data: Mapping[str, PlacedTensor]
    outputs: Mapping[str, PlacedTensor]
    notes: Mapping[str, str]
    kinds: Mapping[str, Kind]

    @property
    def target_bytes(self) -> int:
        """Bytes that the target moves in an iteration, over all workers, as far as its rules are known."""
        return sum(kind.target_bytes for kind in self.kinds.values())

    def to_data(self) -> dict[str, Any]:
        """Return the content of the tables as plain data."""
        kinds = {op: asdict(kind) for op, kind in self.kinds.items()}
        sums = {"plan_bytes": self.plan.total_bytes, "target_bytes": self.target_bytes}
        mesh = dict(zip(self.mesh.axes, self.mesh.ways, strict=True))
        return {"target": self.target.title, "mesh": mesh, **sums, "operators": kinds, "notes": dict(self.notes)}

    def source(self, module: str) -> str:
        """Return the content of the Python file, which will be imported under the name `module`."""
        template = self.target.template.read_text()
        values = {
            "MODEL": self.plan.graph.name or "a model",
            "MODULE": module,
            "WORKERS": str(self.plan.workers),
            "PLAN_BYTES": f"{self.plan.total_bytes:,}",
            "TARGET_BYTES": f"{self.target_bytes:,}",
            "WAYS": repr(dict(zip(self.mesh.axes, self.mesh.ways, strict=True))),
            "PARAMETERS": _written(self.parameters, shapes=False),
            "INPUT": json.dumps(next(iter(self.data), "x")),
            "DATA": _written(self.data, shapes=True),
            "OUTPUTS": _written(self.outputs, shapes=True),
        }
        return re.sub(r"@(\w+)@", lambda match: values[match[1]], template)


def _written(placed: Mapping[str, PlacedTensor], *, shapes: bool) -> str:
    lines = []
    for name, tensor in placed.items():
        text = ",".join(map(str, tensor.placements))
        lines.append(f"    {name!r}: {(tensor.shape, text) if shapes else text!r},")
    return "\n".join(["{", *lines, "}"])


def export(plan: Plan, name: str) -> Exported:
    """Return a plan for an engine that splits tensors over meshes, one of `TARGETS`.

    Raises PlanError if the engine cannot run it at all: extents of data that the parts do not divide, or recurrent
    layers.
    """
    target, graph = mesh_target(name), plan.graph
    if not plan.ways:
        raise PlanError("expected a plan for at least 2 workers; there is nothing to place for one")
    if shares := plan.ways.shares:
        raise PlanError(f"{target.title} needs workers with equal shares, found {', '.join(map(str, shares))}")
    if STAGES in plan.ways.axes:
        raise PlanError(f"{target.title} cannot run a plan with pipeline stages; it only splits tensors")
    parallel = Parallel.read(plan.search.details.get("parallel"))
    if target.torch_modules and parallel is not None and parallel.zero:
        raise PlanError(f"{target.title} cannot run {parallel}: use FSDP2 for ZeRO (export-plan --to fsdp2)")
    layers = [match[1] for name in graph.entries if (match := RECURRENT.fullmatch(name))]
    if layers and target.torch_modules:
        raise PlanError(f"{layers[0]}: {target.title} has no recurrent layers: write its cells with nn.Linear")
    asked = _outputs_of_modules(graph) if target.torch_modules else _activations(graph)
    outputs = {path: output for path, output in asked.items() if PARTIAL not in plan.layouts[output]}
    given = [tensor for tensor in graph.tensors.values() if tensor.init is not None]
    weights, data = ([tensor.name for tensor in given if tensor.role == role] for role in ("weight", "input"))
    fed = [tensor.name for tensor in given if tensor.role == "input" and tensor.init and tensor.init.kind == "data"]
    mesh = mesh_of(plan, (*weights, *data, *outputs.values()))
    lies, notes = _held(plan, mesh, (*weights, *data), target)
    parameters = _parameters(graph, mesh, lies, notes)
    wanted = _placed_outputs(plan, mesh, outputs, target)
    known = {entry.tensor for entry in entries_of(graph).values()}
    return Exported(
        plan,
        target,
        mesh,
        parameters,
        {name: PlacedTensor(graph.tensors[name].shape, lies[name]) for name in fed if name not in known},
        {
            path: PlacedTensor(graph.tensors[output].shape, wanted[output])
            for path, output in outputs.items()
            if output in wanted
        },
        notes,
        _kinds(plan, target, Engine(graph, mesh, target, dict(lies), wanted).run()),
    )


def _parameters(graph: Graph, mesh: Mesh, lies: Mapping[str, Layout], notes: dict[str, str]) -> dict[str, PlacedTensor]:
    """Return the placements of the user's parameters, which may span several dimensions of the graph; add notes."""
    parameters = {}
    for entry, parameter in entries_of(graph).items():
        if parameter.tensor is not None and parameter.tensor in lies:
            fine = graph.tensors[parameter.tensor].shape
            joins = groups(parameter.shape, fine)
            if joins is None:
                raise PlanError(f"{entry}: expected a shape that groups the dimensions {fine}, found {parameter.shape}")
            placements, same = joined(lies[parameter.tensor], joins, fine)
            if not same:
                notes[entry] = f"a part of {fine} within {parameter.shape}; splitting it gathers it first"
            parameters[entry] = PlacedTensor(parameter.shape, placements)
    return parameters


def _placed_outputs(plan: Plan, mesh: Mesh, outputs: Mapping[str, str], target: Target) -> dict[str, Layout]:
    """Return the placements of modules' results: as planned, as far as the operators that read them allow.

    Results with unequal parts are left to the target if it supports them.
    """
    allowed = _dims_allowed(plan.graph, target)
    wanted = {}
    for path, output in outputs.items():
        planned = mesh.placements(plan.layouts[output])
        placements = only(planned, allowed[output]) if output in allowed else planned
        reason = uneven_split(plan.graph.tensors[output].shape, placements, mesh)
        if reason and not target.uneven:
            raise PlanError(f"{path}: {reason}: {ADVICE}")
        if not reason:
            wanted[output] = placements
    return wanted


def _held(plan: Plan, mesh: Mesh, names: Iterable[str], target: Target) -> tuple[dict[str, Layout], dict[str, str]]:
    """Return the placements of weights, states and data in the target, with notes on differences from the plan."""
    graph, notes = plan.graph, dict[str, str]()
    tables = {node.inputs[0] for node in graph.nodes if node.op == "embedding"}
    allowed = _dims_allowed(graph, target)
    lies = {}
    for name in names:
        planned = held = mesh.placements(plan.layouts[name])
        if target.torch_modules and name in tables:
            held = split_once(held, 0)
        if name in allowed:
            held = only(held, allowed[name])
        if held != planned:
            notes[name] = "an embedding's rows are split once only" if name in tables else "an operator needs it whole"
        if reason := uneven_split(graph.tensors[name].shape, held, mesh):
            if not target.uneven or graph.tensors[name].role != "weight":
                raise PlanError(f"{name}: {reason}: {ADVICE}")
            notes[name] = f"{reason}: its first parts are larger, but in the plan the last parts are"
        lies[name] = held
    for tensor in graph.tensors.values():
        if tensor.init is not None and tensor.name not in lies:
            lies[tensor.name] = mesh.placements(plan.layouts[tensor.name])
    return lies, notes


def _dims_allowed(graph: Graph, target: Target) -> dict[str, frozenset[int]]:
    """Return, for tensors that the target splits only in some dimensions, those dimensions."""
    signature_of, allowed = signatures(graph), dict[str, frozenset[int]]()
    for node in graph.nodes:
        signature = signature_of[node.name]
        description = signature.description
        touched = [(node.inputs[access.operand], access.index) for access in description.accesses]
        touched += [(name, output.index) for name, output in zip(node.outputs, description.outputs, strict=True)]
        for name, indices in touched:
            dims = target.dims(signature, indices)
            if dims is not None and len(indices) > 1:  # statistics and their weights are small, so they are gathered
                allowed[name] = allowed.get(name, dims) & dims
    return allowed


def _outputs_of_modules(graph: Graph) -> dict[str, str]:
    """Return, by the path of a submodule that has parameters of its own, the tensor that it returns.

    Its nodes are named after it and after their operators: "fc.mm", a second one "fc.add.1".
    """
    owners = {entry.rpartition(".")[0] for entry in graph.entries} - {""}
    outputs = {}
    for node in graph.nodes:
        owner = NUMBER.sub("", node.name).rpartition(".")[0]
        if owner in owners and node.forward is None and graph.tensors[node.outputs[0]].role == "activation":
            outputs[owner] = node.outputs[0]
    return outputs


def _activations(graph: Graph) -> dict[str, str]:
    """Return the activations of the forward pass."""
    outputs = (node.outputs for node in graph.nodes if node.forward is None)
    return {name: name for names in outputs for name in names if graph.tensors[name].role == "activation"}


def _kinds(plan: Plan, target: Target, moved: Mapping[str, int]) -> dict[str, Kind]:
    """Return the bytes of every operator, and why the target does not split it as planned if it does not."""
    planned, signature_of = bytes_by(OPERATOR, flows(plan)), signatures(plan.graph)
    counts = Counter(node.op for node in plan.graph.nodes)
    target_bytes = summed((node.op, moved[node.name]) for node in plan.graph.nodes)
    why: dict[str, str] = {}
    for node in plan.graph.nodes:
        splits, reason = target.splits(signature_of[node.name])
        if {*plan.strategies[node.name]} - {*splits, EVERYWHERE, TERMS}:
            why[node.op] = reason
    return {op: Kind(count, planned[op], target_bytes[op], why.get(op, "")) for op, count in counts.items()}


@display.tables.register
def _tables(exported: Exported) -> list[Table]:
    shown = sorted(exported.kinds.items(), key=lambda item: -item[1].target_bytes)
    rows = [
        (op, str(kind.nodes), exact_bytes(kind.plan_bytes), exact_bytes(kind.target_bytes), kind.why)
        for op, kind in shown
        if kind.why or kind.target_bytes or kind.plan_bytes
    ]
    summary = [
        ("mesh", ", ".join(f"{axis} {way}" for axis, way in zip(exported.mesh.axes, exported.mesh.ways, strict=True))),
        ("workers", grid(exported.plan.ways.factors)),
        ("bytes of the plan", exact_bytes(exported.plan.total_bytes)),
        (f"bytes that {exported.target.title} will move", f"{exact_bytes(exported.target_bytes)} (estimated)"),
    ]
    tables = [
        facts(f"export to {exported.target.title}", summary),
        table("per operator", ("operator", "nodes", "plan", "target", "how the target differs"), rows),
    ]
    if exported.notes:
        tables.append(table("parameters placed differently", ("name", "why"), list(exported.notes.items())))
    return tables
