"""Deciding where no device stands for all, as on a calibrated host: every candidate is simulated worker by worker."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace as msgspec_replace

import planner
from planner.errors import GraphError, PlanError
from planner.graph.facts import weight_dtype
from planner.graph.ir import Graph
from planner.parallel import Parallel
from planner.plans.plan import Plan
from planner.report.tables import fullest
from planner.search.pins import Degree
from simulator.projection.kernels import is_product
from simulator.projection.stack import OURS
from simulator.report import Settings, report, simulation_of
from simulator.systems import plan_program
from tensor_partitioner.decision.candidates import candidate_name, divisors, family
from tensor_partitioner.decision.record import (
    OWN,
    SEARCHED,
    Candidate,
    Decision,
    Line,
    MachineFacts,
    ModelFacts,
    Search,
    Stage,
)  # fmt: skip
from tensor_partitioner.decision.typed import commands
from tensor_partitioner.decision.why import COMMUNICATING, COMPUTING, verdict, why
from tensor_partitioner.replicas import GraphModel, Source, computed_dtype
from topologies import Machine


@dataclass(frozen=True, slots=True)
class Simulating:
    """A graph to be trained on all devices of a machine, and the degrees that are fixed."""

    source: Source
    graph: Graph
    machine: Machine
    pins: tuple[Degree, ...]

    def decision(self, budget_s: float) -> Decision:
        """Simulate data and tensor parallelism, ZeRO, and plans that are searched; a PlanError where none can be.

        At least one is simulated, and none begun when the budget is used up.
        """
        began, model, impossible = time.monotonic(), self._model(), 0
        rows, waiting = list[Candidate](), list[Parallel | str](self._ways())
        waiting += [] if self.pins else ["bytes", "time"]
        considered = len(waiting)
        while waiting and (not rows or time.monotonic() < began + budget_s):
            way = waiting.pop(0)
            try:
                rows.append(self._simulated(way, model))
            except (PlanError, GraphError):
                impossible += 1
        if not rows:
            raise PlanError(
                f"{self.graph.name}: none of {considered} candidates can divide it over {self.machine.name}"
            )
        rows.sort(key=lambda row: (not row.fits, row.seconds_per_step if row.fits else row.needed_bytes))
        told = (rows[0], *(msgspec_replace(row, why=why(row, rows[0])) for row in rows[1:]))
        machine = self._facts(model, rows[0])
        lower_s = self._least_s(model) if waiting else rows[0].seconds_per_step
        return Decision(
            model=model,
            machine=machine,
            stack=OURS,
            verdict=verdict(model, machine, told),
            search=Search(
                considered=considered,
                bounded_away=0,
                unfinished=len(waiting),
                impossible=impossible,
                projected=len(rows),
                lower_bound_s=lower_s,
                gap=rows[0].seconds_per_step / lower_s - 1,
                seconds=time.monotonic() - began,
            ),
            candidates=told,
            commands=tuple(commands(self.source, model.batch, machine, told[0], stack=OURS, pins=self.pins)),
        )

    def _ways(self) -> Iterator[Parallel]:
        devices = len(self.machine.devices)
        for tp in divisors(devices):
            for zero in (0, 1, 3) if tp < devices else (0,):
                way = Parallel(dp=devices // tp, tp=tp, zero=zero)
                if all(getattr(way, pin.axis) == pin.degree for pin in self.pins):
                    yield way

    def _plan(self, way: Parallel | str) -> Plan:
        if isinstance(way, Parallel):
            return planner.plan(self.graph, parallel=way)
        return planner.plan(self.graph, len(self.machine.devices), objective=way, machine=self.machine)

    def _simulated(self, way: Parallel | str, model: ModelFacts) -> Candidate:
        settings = Settings()
        program = plan_program(self._plan(way), self.machine, settings.prefetch)
        simulated = report(program, str(way), simulation_of(program, settings), settings.told(self.machine))
        memory, seconds, exposed_s = (
            fullest(simulated),
            simulated.seconds_per_step or 0.0,
            simulated.exposed_seconds or 0.0,
        )
        needed, capacity = (0, None) if memory is None else (memory.peak_bytes, memory.capacity_bytes)
        room = float("inf") if capacity is None else float(capacity)
        if isinstance(way, Parallel):
            name, kind = candidate_name(way), family(way)
        else:
            name, kind = SEARCHED[way], f"{OWN}, least {way}"
        return Candidate(
            name=name,
            parallel=name if isinstance(way, Parallel) else None,
            family=kind,
            seconds_per_step=seconds,
            bound_s=self._least_s(model),
            fits=not simulated.overfull,
            samples_per_s=model.batch / seconds,
            tokens_per_s=None if model.sequence is None else model.batch * model.sequence / seconds,
            utilisation=self._least_s(model) / seconds,
            needed_bytes=needed,
            capacity_bytes=room,
            margin_bytes=room - needed,
            exposed_s=exposed_s,
            bubble_s=0.0,
            roof_factor=seconds / self._least_s(model),
            micro_batches=self.graph.micro_batches,
            shares={COMPUTING: seconds - exposed_s, COMMUNICATING: exposed_s},
            memory=tuple(Line(what=what, nbytes=nbytes) for what, nbytes in (memory.by_kind if memory else {}).items()),
            stages=(Stage(first="-", last="-", forward_s=seconds - exposed_s, backward_s=0.0, needed_bytes=needed),),
        )

    def _least_s(self, model: ModelFacts) -> float:
        """Return the seconds of the model's products at the peak of all devices."""
        return max(1.0, model.operations) / sum(device.peak(model.dtype) for device in self.machine.devices)

    def _model(self) -> ModelFacts:
        model = GraphModel(self.graph)
        shares = model.inner(Parallel(), model.samples).replica.shares
        tensors = self.graph.tensors.values()
        tokens = [t.shape[1] for t in tensors if t.role == "input" and t.dtype == "int32" and len(t.shape) == 2]
        return ModelFacts(
            name=self.graph.name,
            parameters=sum(t.elements for t in tensors if t.role == "weight" and t.init is not None),
            batch=model.samples * self.graph.micro_batches,
            sequence=max(tokens, default=None),
            layers=0,
            operations=self.graph.micro_batches * sum(share.operations for share in shares if is_product(share)),
            dtype=computed_dtype(self.graph),
            weights=weight_dtype(self.graph) or "",
        )

    def _facts(self, model: ModelFacts, best: Candidate) -> MachineFacts:
        devices: Sequence[str] = [device.spec.name for device in self.machine.devices]
        return MachineFacts(
            name=self.machine.name,
            devices=len(devices),
            per_node=len(devices),
            device=" and ".join(sorted(set(devices))),
            memory_bytes=best.capacity_bytes,
            peak_flop_per_s=min(device.peak(model.dtype) for device in self.machine.devices),
        )
