"""Errors a user's graph or plan can cause; commands print them as one line and exit with status 2."""


class GraphError(ValueError):
    """A training graph is inconsistent: says what was found, what was expected, and at which node or tensor."""


class PlanError(ValueError):
    """A plan contradicts its graph or itself: says what was expected, what was found, and where (a JSON path)."""
