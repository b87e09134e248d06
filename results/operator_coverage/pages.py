"""The facts as pages: a summary, and one table per catalog."""

from __future__ import annotations

from collections import Counter
from typing import Any

from results.experiment import table
from results.operator_coverage.entries import KINDS

Facts = dict[str, Any]

PAGES = {"MXNet 0.11.0": "mxnet.md", "core ATen 2.11": "aten.md"}
COLUMNS = (
    *("operator", "described", "class", "strategies"),
    *("in a graph", "kernel", "gradient", "verified", "composition, or why not"),
)
SOURCES = {
    "MXNet 0.11.0": "the registrations in the sources of Apache MXNet, tag 0.11.0",
    "core ATen 2.11": "the operators tagged `core` in `native_functions.yaml` of PyTorch 2.11.0",
}
PUBLISHED = {"operators": 139, "described": 134, "element-wise": 77, "opaque": 2, "output reduction": 11}
"""What Tofu's Section 4.1 says of MXNet 0.11."""


def summary(facts: Facts) -> dict[str, str]:
    """Return the blocks of README.md: what is claimed, and what is found."""
    verified, mxnet = facts["verification"], facts["counts"]["MXNet 0.11.0"]
    return {
        "counts": count_table(facts),
        "paper": paper_table(mxnet, facts["tensor folder"]),
        "mxnet": reasons(facts, "MXNet 0.11.0"),
        "aten": reasons(facts, "core ATen 2.11"),
        "soundness": soundness_table(verified["soundness"]),
        "fewer": fewer_shapes(verified["fewer shapes"]),
        "mutants": mutant_table(verified["mutants"]),
        "lines": lines_table(facts["lines"]),
    }


def paper_table(every: dict[str, int], folder: dict[str, int]) -> str:
    """Compare the paper's counts with those of all operators, and of those of one folder."""
    rows = [[head, said, every[head], folder[head]] for head, said in PUBLISHED.items()]
    rows.append(["... of which by selection by value", "-", every["selection by value"], folder["selection by value"]])
    rows.append(["not element-wise", "57 or 47", *(own["described"] - own["element-wise"] for own in (every, folder))])
    return table(["", "paper", "here: registered in `src/`", "here: `src/operator/tensor/` only"], rows)


def soundness_table(groups: Facts) -> str:
    """Count what was split, and how often."""
    heads = ("operators", "strategies", "shapes", "fewest shapes of a strategy")
    checks = list(dict.fromkeys(kind for own in groups.values() for kind in own["checks"]))
    rows = [
        [group, *(own[head] for head in heads), *(own["checks"].get(kind, "-") for kind in checks)]
        for group, own in groups.items()
    ]
    return table(["", *heads, *(f"checks: {kind}" for kind in checks)], rows)


def fewer_shapes(exceptions: dict[str, list[Any]]) -> str:
    """Name the operators that have fewer shapes."""
    named = [f"`{name}` ({number}: {reason})" for name, (number, reason) in exceptions.items()]
    return f"Fewer shapes than 50 has only {', '.join(named)}."


def mutant_table(kinds: dict[str, list[int]]) -> str:
    """Count mutants, and those killed."""
    total = [sum(own[number] for own in kinds.values()) for number in (0, 1)]
    return table(["of", "mutants", "killed"], [[kind, *own[::-1]] for kind, own in (kinds | {"all": total}).items()])


def lines_table(groups: dict[str, dict[str, int]]) -> str:
    """Count descriptions by their lines."""
    rows = []
    for group, own in groups.items():
        few, total = [own.get(str(number), 0) for number in (1, 2, 3)], sum(own.values())
        rows.append([group, total, *few, total - sum(few), f"{sum(few) / total:.0%}", max(map(int, own))])
    return table(["descriptions", "all", "1 line", "2", "3", "more", "within three", "the longest"], rows)


def count_table(facts: Facts) -> str:
    """Count the operators of every catalog."""
    heads, extra = ("operators", "described", "directly", "from parts", *KINDS), ("kernel", "gradient", "verified")
    lines = []
    for catalog, rows in facts["catalogs"].items():
        every = [sum(_complete(row.get(fact)) for row in rows.values()) for fact in extra]
        carried = sum(row.get("graph", False) for row in rows.values())
        lines.append([catalog, *(facts["counts"][catalog][head] for head in heads), carried, *every])
    return table(["", *heads, "in a graph", *extra], lines)


def reasons(facts: Facts, catalog: str) -> str:
    """Return every reason for leaving operators out, with the operators."""
    left: dict[str, list[str]] = {}
    for name, row in facts["catalogs"][catalog].items():
        if row["described"] == "no":
            left.setdefault(row["reason"], []).append(f"`{name}`")
    return "\n".join(f"- {reason} ({', '.join(names)})" for reason, names in left.items())


def page(facts: Facts, catalog: str) -> str:
    """Return one catalog's table."""
    rows = facts["catalogs"][catalog]
    told = Counter(row["described"] for row in rows.values())
    return f"""# {catalog}

From {SOURCES[catalog]}. Made by `run.py`; see [the summary](README.md).

Strategies are given for every application: a variable alone is split and concatenated, `k:Sum` is
combined by a sum, and those in parentheses cannot be split. `2 of 3`: so many of the parts have it.
*Verified* is by `operators check`, which needs a kernel; what has none is compared by tests with
another library's values.

{told["directly"]} directly, {told["from parts"]} from parts, {told["no"]} not.

{table(COLUMNS, (_line(name, row) for name, row in rows.items()))}
"""


def _line(name: str, row: Facts) -> list[str]:
    if row["described"] == "no":
        return [f"`{name}`", "no", *[""] * 6, row["reason"]]
    strategies = "<br>".join(_strategies(part, several=len(row["strategies"]) > 1) for part in row["strategies"])
    text = "`" + row["composition"].replace("; ", "`<br>`") + "`" + (f"<br>{row['note']}" if "note" in row else "")
    shares = [_share(row[fact]) for fact in ("kernel", "gradient", "verified")]
    return [f"`{name}`", row["described"], row["class"], strategies, "yes" if row["graph"] else "-", *shares, text]


def _strategies(part: Facts, *, several: bool) -> str:
    split = [name if reducer is None else f"{name}:{reducer}" for name, reducer in part["split"].items()]
    refused = f" ({' '.join(part['refused'])})" if part["refused"] else ""
    return (f"{part['operator']}: " if several else "") + (" ".join(split) or "none") + refused


def _complete(share: list[int] | None) -> bool:
    return share is not None and share[0] == share[1]


def _share(share: list[int]) -> str:
    have, parts = share
    return "yes" if have == parts else f"{have} of {parts}" if have else "-"
