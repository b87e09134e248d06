"""Profiles of other frameworks, compared with predictions: kernels by class, collectives, idle time."""

from planner.report.profiles.beside import beside_profile as beside_profile
from planner.report.profiles.profile import Profile as Profile, read_profile as read_profile
