"""Samples per second of recurrent networks under every system, on the papers' machine (Tofu's Figure 9 and Table 3)."""
