"""Explanations of plans: where bytes go, which alternatives were rejected, and how two plans differ."""
