"""What the transports cost, and that they do the same to the bit."""
