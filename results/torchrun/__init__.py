"""Plans on ranks of torchrun: bytes, parameters and seconds."""
