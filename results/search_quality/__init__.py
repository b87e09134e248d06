"""Iterations under the plans of several searches, on the papers' machine (Tofu's Figure 10)."""
