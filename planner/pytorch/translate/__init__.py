"""From the operators of a trace to the catalog's: one module for each family of operators."""
