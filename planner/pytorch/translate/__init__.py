"""Translate the operators of a trace to the catalog's, with one module per family of operators."""
