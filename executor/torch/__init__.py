"""What the executor does with PyTorch; nothing else of it loads PyTorch."""
