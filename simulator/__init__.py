"""A machine that runs a plan's program in simulated time: `simulator.simulate(plan, "p2.8xlarge")`."""

from simulator.baselines.registry import SYSTEMS, register_system, simulate_system
from simulator.interpreter import DeadlockError, Switches, Timeline, interpret
from simulator.report import simulate
from simulator.simulation import Simulation, simulated
from simulator.systems import System, SystemProgram, SystemRequest, plan_program

__all__ = [
    "SYSTEMS",
    "DeadlockError",
    "Simulation",
    "Switches",
    "System",
    "SystemProgram",
    "SystemRequest",
    "Timeline",
    "interpret",
    "plan_program",
    "register_system",
    "simulate",
    "simulate_system",
    "simulated",
]
