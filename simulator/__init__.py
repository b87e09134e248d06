"""A machine that runs a plan's program in simulated time: `simulator.simulate(plan, "p2.8xlarge")`."""

from simulator.baselines.registry import SYSTEMS
from simulator.interpreter import DeadlockError, Switches, Timeline, interpret
from simulator.report import simulate, simulate_system
from simulator.simulation import Simulation, simulated

__all__ = [
    "SYSTEMS",
    "DeadlockError",
    "Simulation",
    "Switches",
    "Timeline",
    "interpret",
    "simulate",
    "simulate_system",
    "simulated",
]
