"""The plan that is found by default beside those of every alternative, under S and S,R."""
