"""The sentences that cannot be checked, by what they are."""

from __future__ import annotations

from collections.abc import Iterator

REASONS = {
    "background": "of the field, of others' work or of hardware on the market",
    "opinion": "a goal, an opinion or an outlook",
    "method": "how their system works",
    "notation": "a definition, a notation or an example that claims nothing",
    "proof": "a step of a proof, whose theorem is a row",
    "setup": "what was run; our experiments run the same",
    "metadata": "a title, a reference or a caption",
    "asymptotic": "an argument on orders of growth",
    "list": "the list that it counts is not at hand",
}

EXCLUDED = {
    "tofu": {
        "background": "5-8 10 12-14 28-29 56-58 75 98-99 106 159 183-184 188-190 212",
        "opinion": "9 11 26 30 32-35 37 45-46 213",
        "method": "15-18 22-23 41-44 61-64 76-79 83 88 90-93 97 100 102 107 109-111 113-114 116-117 119 124-128 "
        "133-139 161 165-166 173-175 195-197 199-204 210-211 215",
        "notation": "38-40 47-51 53-54 60 65-67 82 84-87 89 108 120 123 152",
        "proof": "143 146 148",
        "setup": "176 179 181-182 185-187 191-193 198 205",
        "metadata": "4",
        "asymptotic": "59",
        "list": "71-72",
    },
    "tofu-appendix": {"method": "2 11-12", "notation": "1 6-8 13 16", "proof": "25 28 34 36-37"},
    "soybean": {
        "background": "6-7 10-12 32 35 51 142 144",
        "opinion": "2 13 16 56",
        "method": "4 14-15 50 52-55 58-62 65-67 88 93-99 101-107 109 111-113 117 121-123 134 136-138 141 146-151",
        "notation": "20-31 64 68-87",
        "setup": "18 152",
        "asymptotic": "115-116 135",
    },
    "distpar-appendix": {
        "opinion": "9-10",
        "method": "11",
        "notation": "2-8 21 23-24 27-39 41-42 44-46 48-49 54",
        "metadata": "1 53",
    },
}
"""By paper and reason, the sentences' numbers."""


def excluded() -> dict[tuple[str, int], str]:
    """Return the reason of every sentence that cannot be checked."""
    return {
        (paper, number): reason
        for paper, reasons in EXCLUDED.items()
        for reason, text in reasons.items()
        for number in numbers(text)
    }


def numbers(text: str) -> Iterator[int]:
    """Yield the numbers that a text such as "1 4-6" names."""
    for part in text.split():
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)
