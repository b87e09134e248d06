"""How the recursive search grows with the model's depth, and with the number of workers."""
