"""Which operators of other frameworks are described: tables of their names, with compositions of ours or reasons."""
