"""How long the searches take, and how much memory, beside what others report (Tofu's Table 1)."""
