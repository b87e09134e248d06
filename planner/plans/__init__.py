"""Plans: the decisions, the traffic that follows from them, and how they are stored."""
