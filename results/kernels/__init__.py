"""Kernels and training steps beside PyTorch's, with one thread."""
