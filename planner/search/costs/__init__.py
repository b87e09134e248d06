"""What choices cost: bytes of reading, storing and crossing levels, as tables over the states of variables."""
