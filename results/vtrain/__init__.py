"""Published iteration times of GPTs, data parallel on one node of A100s, and predicted ones."""
