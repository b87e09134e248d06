"""Modules of PyTorch imported, planned and simulated."""
