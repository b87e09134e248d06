"""What two other planners find on the same models, beside what this one finds, for 8 workers."""
