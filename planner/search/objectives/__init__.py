"""Objectives: bytes, time on a machine, or either with a price on memory."""
