"""Published times of an all-reduce on one node of A100s, predicted from its links."""
