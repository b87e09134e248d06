"""A machine of which some GPUs are slower than others: equal and uneven shares."""
