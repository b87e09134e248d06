"""A simulation that the command `simulate` runs: a plan on a machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from planner.graph.facts import no_data_parallelism
from planner.planning import plan as search_plan
from planner.plans.plan import Plan
from planner.plans.plan_json import load_plan
from planner.report.schema import DataParallelism, Report
from simulator.programs import plan_program
from simulator.report import Settings, data_parallelism, report, simulation_of
from simulator.simulation import Simulation
from tensor_partitioner.commands.planning_options import is_saved_plan, plan_model
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
        """Plan, and simulate; `note` is told what else is simulated."""
        machine = load_topology(self.options["topo"])
        settings = Settings(**{field.name: self.options[field.name] for field in fields(Settings)})
        plan = self._plan()
        program = plan_program(plan, machine, settings.prefetch)
        if self.options["output"]:
            plan.save(self.options["output"])
        simulation = simulation_of(program, settings, each_worker=self.recorded)
        beside = _data_parallelism(plan, machine, settings, note) if self.options["data_parallel"] else None
        told = settings.told(machine)
        return simulation, report(plan, self.name, simulation, told, beside, tasks=self.options["tasks"])

    def _plan(self) -> Plan:
        """Load the plan, or search it; for little time, or within memory, on the machine that is simulated."""
        options = self.options
        if is_saved_plan(self.source):
            saved = load_plan(self.source)
            return saved if options["parallel"] is None else search_plan(saved.graph, parallel=options["parallel"])
        about_machine = options["objective"] == "time" or options["memory"] is not None
        return plan_model(self.source, {**options, "output": None}, options["topo"] if about_machine else None)


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
