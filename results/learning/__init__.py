"""Training until it has learned something, on data that is held out."""
