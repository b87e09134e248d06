"""What a common order, fused fetches and a static arena save in memory (Tofu, Section 6)."""
