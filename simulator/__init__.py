"""A machine that runs a plan's program in simulated time: `simulator.simulate(plan, "p2.8xlarge")`."""

from simulator.interpreter import DeadlockError, Switches, Timeline, interpret
from simulator.programs import PlanProgram, plan_program
from simulator.report import simulate
from simulator.simulation import Simulation, simulated

__all__ = [
    "DeadlockError",
    "PlanProgram",
    "Simulation",
    "Switches",
    "Timeline",
    "interpret",
    "plan_program",
    "simulate",
    "simulated",
]
