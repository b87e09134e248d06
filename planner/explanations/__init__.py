"""What a person wants to know of plans: where their bytes go, what was rejected, in what two of them differ."""
