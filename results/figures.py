"""The figures of the README, made from the experiments' data."""


def write() -> None:
    """Write them."""
