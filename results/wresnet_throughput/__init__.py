"""Samples per second of wide ResNets under every system, on the papers' machine (Tofu's Figure 8)."""
