"""Profiles of other frameworks, compared with predictions: kernels by class, collectives, idle time."""

from planner.report.profiles.beside import beside_profile
from planner.report.profiles.profile import Profile, read_profile

__all__ = ["Profile", "beside_profile", "read_profile"]
