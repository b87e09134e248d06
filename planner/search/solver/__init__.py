"""Minimize a sum of tables over variables: exactly, or with a lower bound."""
