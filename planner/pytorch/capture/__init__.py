"""Capture a module as a functional trace: the export, and what it needs of Python."""
