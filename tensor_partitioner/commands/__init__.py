"""Every command: the one layer that may import all others."""
