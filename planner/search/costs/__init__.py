"""Costs of choices, as tables over the states of variables: bytes read, stored, and moved across each level."""
