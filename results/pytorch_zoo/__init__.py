"""Bytes of the zoo's models and of the same models as users of PyTorch write them."""
