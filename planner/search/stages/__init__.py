"""Pipeline stages: cut the forward pass into stages after the search within a stage."""

from planner.search.stages.staged import with_stages as with_stages
