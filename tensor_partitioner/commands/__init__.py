"""The commands. This is the only layer that may import all others."""
