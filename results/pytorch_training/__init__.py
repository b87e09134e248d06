"""Examples trained on several workers and in PyTorch, from the same weights on the same data."""
