"""A simulation that the command `simulate` runs, once or per cell of a sweep: a plan or a system, on a machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from planner.errors import PlanError
from planner.graph.facts import no_data_parallelism
from planner.graph.ir import Graph
from planner.model_source import model as load_model
from planner.planning import plan as search_plan
from planner.plans.plan import Plan
from planner.plans.plan_json import load_plan
from planner.report.schema import DataParallelism, Report
from simulator.baselines.largest_batch import largest_batch
from simulator.baselines.registry import system_named, system_program
from simulator.report import Settings, data_parallelism, report, simulation_of
from simulator.simulation import Simulation
from simulator.systems import SystemProgram, TooFewSamplesError, plan_program
from tensor_partitioner.commands.planning_options import is_saved_plan, plan_model, training_options
from topologies import Machine, load_topology

ALSO_DATA_PARALLEL = "also simulating data parallelism; --no-data-parallel leaves it out"


@dataclass(frozen=True, slots=True)
class SimulationRequest:
    """A model or a saved plan, and the command's options, as plain data that another process can be given.

    With `recorded` every message is kept, which traces show.
    """

    source: str
    options: Mapping[str, Any]
    recorded: bool = False

    @property
    def name(self) -> str:
        """The plan's name in the report: the file that holds it, without folders, or the model."""
        saved = self.source if is_saved_plan(self.source) else self.options["output"]
        return self.source if saved is None else Path(saved).name

    def run(self, note: Callable[[str], object] = lambda _: None) -> tuple[Simulation, Report]:
        """Plan, or let a system make its program, and simulate; `note` is told what else is simulated."""
        machine, system = load_topology(self.options["topo"]), self.options["system"]
        settings = Settings(**{field.name: self.options[field.name] for field in fields(Settings)})
        program = self._saved(machine)
        simulation = simulation_of(program, settings, each_worker=self.recorded)
        plan = program.plan if self.options["data_parallel"] and system is None else None
        beside = None if plan is None else _data_parallelism(plan, machine, settings, note)
        told = ({} if system is None else {"system": system}) | settings.told(machine)
        return simulation, report(program, self.name, simulation, told, beside, tasks=self.options["tasks"])

    def _saved(self, machine: Machine) -> SystemProgram:
        """Make the program, with the largest batch that fits if that is wanted, and save its plan where that is."""
        output, system = self.options["output"], self.options["system"]
        if output and system is not None and not system_named(system).is_plan:
            raise PlanError(f"-o: expected a system that is a plan, found {system}")
        if self.options["largest_batch"]:
            program = largest_batch(lambda batch: self._of_batch(machine, batch))[1]
        else:
            program = self._program(machine, self.options)
        if output and program.plan is not None:
            program.plan.save(output)
        return program

    def _of_batch(self, machine: Machine, batch: int) -> SystemProgram:
        parallel, count = self.options["parallel"], self.options["micro_batches"] or 1
        if batch < count * (1 if parallel is None else parallel.dp):
            raise TooFewSamplesError(f"expected a sample for every worker and micro-batch, found {batch}")
        return self._program(machine, {**self.options, "batch": batch})

    def _program(self, machine: Machine, options: Mapping[str, Any]) -> SystemProgram:
        if options["system"] is None:
            return plan_program(self._plan(options), machine, options["prefetch"])
        graph, workers = self._graph(options)
        return system_program(options["system"], graph, machine, workers, options["prefetch"], search_plan)

    def _plan(self, options: Mapping[str, Any]) -> Plan:
        """Load the plan, or search it; for little time, or within memory, on the machine that is simulated."""
        if is_saved_plan(self.source):
            saved = load_plan(self.source)
            return saved if options["parallel"] is None else search_plan(saved.graph, parallel=options["parallel"])
        about_machine = options["objective"] == "time" or options["memory"] is not None
        return plan_model(self.source, {**options, "output": None}, options["topo"] if about_machine else None)

    def _graph(self, options: Mapping[str, Any]) -> tuple[Graph, int | None]:
        """Load the graph, and over how many workers it goes; None for all devices."""
        if is_saved_plan(self.source):
            plan = load_plan(self.source)
            return plan.graph, plan.workers
        return load_model(self.source, **training_options(self.source, options)), options["workers"]


def _data_parallelism(
    plan: Plan, machine: Machine, settings: Settings, note: Callable[[str], object]
) -> DataParallelism | None:
    """Search and simulate data parallelism of a plan's graph over as many workers; None for a single one."""
    if plan.workers == 1:
        return None
    if refused := no_data_parallelism(plan.graph, plan.workers):
        return DataParallelism(refused=refused)
    note(ALSO_DATA_PARALLEL)
    rival = search_plan(plan.graph, ways=(plan.workers,), shares=plan.ways.shares, searcher="data-parallel")
    return data_parallelism(rival, plan.workers, machine, settings)
