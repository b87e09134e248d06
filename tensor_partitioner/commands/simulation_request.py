"""What the command `simulate` is asked for, once or for every cell of a sweep: a plan or a system, on a machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from planner.errors import PlanError
from planner.graph.ir import Graph
from planner.model_source import model as load_model
from planner.plans.plan import Plan
from planner.plans.plan_json import load_plan
from planner.report.schema import Report
from simulator.baselines.largest_batch import largest_batch
from simulator.baselines.registry import PLANS, SYSTEMS
from simulator.baselines.system import Asked, Deployment, TooFewSamplesError, planned_deployment
from simulator.report import Settings, data_parallelism, report, simulation_of
from simulator.simulation import Simulation
from tensor_partitioner.commands.planning_options import given_options, is_saved_plan, plan_model
from topologies import Machine, load_topology


@dataclass(frozen=True, slots=True)
class Request:
    """A model or a saved plan, and the command's options, as plain data that another process can be given.

    `recorded` asks for every message, which traces and plots show.
    """

    source: str
    options: Mapping[str, Any]
    recorded: bool = False

    @property
    def name(self) -> str:
        """What the report calls the plan: the file that holds it, without folders, or the model."""
        saved = self.source if is_saved_plan(self.source) else self.options["output"]
        return self.source if saved is None else Path(saved).name

    def plan(self, options: Mapping[str, Any]) -> Plan:
        """Load the plan, or search it; for little time, or within memory, on the machine that is simulated."""
        if is_saved_plan(self.source):
            return load_plan(self.source)
        about_machine = options["objective"] == "time" or options["memory"] is not None
        return plan_model(self.source, options, options["topo"] if about_machine else None)

    def deployment(self, machine: Machine) -> Deployment:
        """Return what is to be simulated; with the largest batch that fits in memory, if that is asked for."""
        self._refuse()
        if self.options["largest_batch"]:
            deployment = largest_batch(lambda batch: self._of_batch(machine, batch))[1]
        else:
            deployment = self._deployed(machine, {**self.options, "output": None})
        if self.options["output"] is not None and deployment.plan is not None:
            deployment.plan.save(self.options["output"])
        return deployment

    def _refuse(self) -> None:
        """Raise an error where a system that is no plan is to be saved."""
        if self.options["output"] and self.options["system"] not in (None, *PLANS):
            raise PlanError(f"-o: expected a system that is a plan, found {self.options['system']}")

    def _of_batch(self, machine: Machine, batch: int) -> Deployment:
        if batch < (self.options["micro_batches"] or 1):
            raise TooFewSamplesError(f"expected a sample for every micro-batch, found {batch}")
        return self._deployed(machine, {**self.options, "batch": batch, "output": None})

    def _deployed(self, machine: Machine, options: Mapping[str, Any]) -> Deployment:
        system = options["system"]
        if system is None:
            return planned_deployment(self.plan(options), machine, options["prefetch"])
        graph, workers = self._graph(options)
        devices = len(machine.devices) if workers is None else workers
        machine.require_devices(devices)
        return SYSTEMS[system](Asked(graph, machine, devices, options["prefetch"]))

    def _graph(self, options: Mapping[str, Any]) -> tuple[Graph, int | None]:
        """Return the graph, and over how many workers it goes; None for all devices."""
        if is_saved_plan(self.source):
            plan = load_plan(self.source)
            return plan.graph, plan.workers
        return load_model(self.source, **given_options(options)), options["workers"]

    def run(self) -> tuple[Simulation, Report]:
        """Plan, or deploy, and simulate."""
        machine = load_topology(self.options["topo"])
        deployment, system = self.deployment(machine), self.options["system"]
        settings = Settings(**{one.name: self.options[one.name] for one in fields(Settings)})
        found = simulation_of(deployment, settings, record_messages=self.recorded)
        plan = deployment.plan if self.options["data_parallel"] and system is None else None
        beside = None if plan is None else data_parallelism(plan, machine, settings)
        named = {} if system is None else {"system": system}
        settings_shown = {**named, **asdict(settings)}
        return found, report(deployment, self.name, found, settings_shown, beside, tasks=self.options["tasks"])
