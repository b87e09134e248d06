"""Tofu's Figure 11: how the recursion splits WResNet-152-10 over 8 workers, drawn block by block."""
