"""Reading the numbers in model names."""


def width(text: str) -> int:
    """Return the number written in decimal, or in units of 1024 with a "k"."""
    return int(text[:-1]) * 1024 if text.endswith("k") else int(text)
