"""Programs: what every worker does in one training iteration, lowered from a plan."""
