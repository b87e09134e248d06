"""Training that is killed at random moments, and goes on from its checkpoints."""
