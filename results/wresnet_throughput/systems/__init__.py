"""What else could be done with a model and a machine: the systems of Tofu's evaluation, and others, as programs."""
