"""Every checkable sentence of the papers of Tofu, SoyBean and DistPar, and what we get."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from results import paper_operators
from results.claims import proofs, soybean, tofu, tofu_systems
from results.claims.claim import CLAIMS, FAILS, MISSING, VERDICTS, answered
from results.experiment import Pages, publish, read_data, table

HERE = Path(__file__).parent
SOURCES = {
    "tofu": "Tofu (Wang, Huang, Li; EuroSys 2019)",
    "tofu-appendix": "Tofu's appendix",
    "soybean": "SoyBean (Wang, Huang, Li; 2018)",
    "distpar-appendix": "DistPar's appendix (2023)",
}
PAPERS = tuple(SOURCES)
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

TABLES = (tofu, tofu_systems, soybean, proofs)
"""The modules whose import makes the claims."""

Row = dict[str, Any]


def measured() -> dict[str, Any]:
    """Return the sentences, and why some are no rows, as they are kept; and the rows, worked out anew."""
    paper_operators.register()
    kept: dict[str, Any] = read_data(HERE)
    by_key = {(quote["paper"], quote["number"]): quote for quote in kept["sentences"]}
    rows = []
    for claim in sorted(CLAIMS, key=lambda claim: (PAPERS.index(claim.paper), claim.numbers)):
        answer = answered(claim)
        rows.append(
            {
                "paper": claim.paper,
                "numbers": list(claim.numbers),
                "section": by_key[claim.paper, claim.numbers[0]]["section"],
                "quote": by_key[claim.paper, claim.numbers[0]]["quote"],
                "says": claim.says,
                "got": answer.got,
                "verdict": answer.verdict,
                "why": answer.why,
            }
        )
    return kept | {"rows": rows}


def cells(row: Row) -> list[str]:
    """Render a row."""
    numbers = ", ".join(map(str, row["numbers"]))
    return [
        f"{row['section'] or 'abstract'} ({numbers})",
        f"“{_plain(row['quote'])}”",
        _plain(row["says"]),
        _plain(row["got"]),
        row["verdict"] if row["verdict"] != FAILS else f"**{FAILS}**",
        _plain(row["why"]),
    ]


def _plain(text: str) -> str:
    """Return a text in which nothing is Markdown's or a table's."""
    return "".join(f"\\{letter}" if letter in "*_|<>[]$`\\" else letter for letter in text)


def verdicts(rows: Iterable[Row]) -> str:
    """Count the verdicts of each paper."""
    counts = {paper: Counter(row["verdict"] for row in rows if row["paper"] == paper) for paper in PAPERS}
    lines = [[SOURCES[paper], *(str(count[verdict]) for verdict in VERDICTS)] for paper, count in counts.items()]
    return table(["paper", *VERDICTS], [*lines, ["all", *(str(sum(c[v] for c in counts.values())) for v in VERDICTS)]])


def failed(rows: list[Row]) -> str:
    """Name every claim that does not hold."""
    failing = [row for row in rows if row["verdict"] == FAILS]
    return "\n".join(f"- {row['paper']}: {_plain(row['says'])}. We get: {_plain(row['got'])}." for row in failing)


def left_out(data: Any) -> str:
    """List the sentences that cannot be checked, by reason."""
    by_key = {(sentence["paper"], sentence["number"]): sentence for sentence in data["sentences"]}
    lines = []
    for row in data["not_checkable"]:
        sentence = by_key[row["paper"], row["number"]]
        lines.append([f"{row['paper']} {row['number']}", f"“{_plain(sentence['quote'])}”", row["reason"]])
    return table(["sentence", "begins", "what it is"], lines)


def reasons(data: Any) -> str:
    """Count the sentences that cannot be checked, by reason."""
    counts = Counter(row["reason"] for row in data["not_checkable"])
    return table(
        ["what it is", "meaning", "sentences"], [[name, meaning, counts[name]] for name, meaning in REASONS.items()]
    )


def summary(data: Any) -> str:
    """Say how many sentences there are and what became of them."""
    covered = sum(len(row["numbers"]) for row in data["rows"])
    distinct = len({(row["paper"], number) for row in data["rows"] for number in row["numbers"]})
    waiting = [row["says"] for row in data["rows"] if row["verdict"] == MISSING]
    more = f" {len(waiting)} rows wait for an experiment that is not there yet." if waiting else ""
    return (
        f"{len(data['sentences'])} sentences have a numeral or compare. {distinct} of them are in {len(data['rows'])} "
        f"rows (some in several: {covered} in all), {len(data['not_checkable'])} cannot be checked.{more}"
    )


COLUMNS = ["where (sentences)", "begins", "says", "we get", "verdict", "why"]


def pages(data: Any) -> Pages:
    """Return the README's tables, and the list of what cannot be checked."""
    rows = data["rows"]
    tables = "\n\n".join(
        f"### {SOURCES[paper]}\n\n{table(COLUMNS, (cells(row) for row in rows if row['paper'] == paper))}"
        for paper in PAPERS
    )
    blocks = {"summary": summary(data), "verdicts": verdicts(rows), "failed": failed(rows), "rows": tables}
    return {
        **blocks,
        "not_checkable.md": f"# Sentences that cannot be checked\n\n{reasons(data)}\n\n{left_out(data)}\n",
    }


if __name__ == "__main__":
    publish(HERE, measured(), pages)
