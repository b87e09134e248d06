"""Plans: decisions, the traffic that follows from them, and their file format."""
