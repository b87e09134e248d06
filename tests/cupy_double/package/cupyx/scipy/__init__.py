"""The double of CuPy's functions beyond NumPy's."""
