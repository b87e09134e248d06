"""Stages: which group of workers computes what, a cut of the forward pass after the search of what is inside."""

from planner.search.stages.staged import with_stages

__all__ = ["with_stages"]
