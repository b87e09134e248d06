"""What control dependencies, fused and delayed fetches and spread reductions save in memory (Tofu, Section 6)."""
