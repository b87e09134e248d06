"""Import all families of operators, which register their converters."""
