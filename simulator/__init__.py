"""A machine that runs a program in simulated time."""

from simulator.interpreter import DeadlockError, Switches, Timeline, interpret
from simulator.simulation import Simulation, simulate

__all__ = ["DeadlockError", "Simulation", "Switches", "Timeline", "interpret", "simulate"]
