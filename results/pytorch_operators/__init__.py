"""Samples of PyTorch's operators, and modules drawn at random, trained beside their graphs."""
