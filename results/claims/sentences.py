"""The sentences of the papers' texts that have a numeral or compare, with where they stand.

The texts are not part of this repository; `ROOT.parent / "shared" / "papers"` holds them where they are at hand. A
table is one sentence, and so is what a program or a formula in the text says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from results.experiment import ROOT

TEXTS = ROOT.parent / "shared" / "papers"
PAPERS = ("tofu", "tofu-appendix", "soybean", "distpar-appendix")

REFERENCE = re.compile(
    r"\[[\d, \u2013-]+\]|\((?:Sec|Section|Figure|Fig|Table)[^)]*\)|"
    r"(?:Sec(?:tion)?s?|Figures?|Figs?|Tables?|Eq(?:uation)?|"
    r"Theorems?|Lemma|Corollary|Algorithm|Step|step|Case|case|Definition|Assumption)[ .#-]*\d+(?:\.\d+)*(?:\([a-z]\))?",
)
"""What has a number and says none."""

NUMERAL = re.compile(
    r"\d|\b(?:two|three|four|five|six|seven|eight|nine|ten|twenty|half|halves|third|quarter|twice|dozen|hundreds?|"
    r"thousands?|double[sd]?|once|single|zero)\b",
    re.IGNORECASE,
)
COMPARISON = re.compile(
    r"\b(?:(?:fast|slow|bett|wors|high|low|larg|small|few|great|less|long|short|cheap|wid|deep|earli|close|bigg|easi|simpl)er|"
    r"worse|more|less|fewer|most|least|best|worst|faster|outperforms?|optimal(?:ly|ity)?|minim\w+|maxim\w+|exceeds?|"
    r"than|same|equals?|identical|comparable|dominates?|strictly|far|crucial|balanced|always|never|independent|"
    r"speed-?ups?|guarantees?|proportional|linear|exponential|scales?)\b",
    re.IGNORECASE,
)
HEADING = re.compile(
    r"^(?:(?:A\.)?\d+(?:\.\d+)*\.?\s+[A-Z]\S*(?: \S+){0,9}|A\.\d(?:\.\d)?\.? [A-Z].{0,60}|Appendix .{0,80}|"
    r"(?:\d\. )?[A-Z][A-Z ]{6,60})$"
)
ENDS = re.compile(r"(?<=[.?!])[)”\"]?\s+(?=[A-Z“\"(\d$•S_])")
ABBREVIATED = re.compile(r"(?:e\.g|i\.e|vs|Fig|Sec|et al|etc|resp|Inc|al)\.$")


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence of a paper, by number, with the section's heading that it stands under."""

    paper: str
    number: int
    section: str
    text: str

    @property
    def key(self) -> str:
        """What it is called."""
        return f"{self.paper} {self.number}"


def available() -> bool:
    """Whether the texts are at hand."""
    return all((TEXTS / f"{paper}.txt").is_file() for paper in PAPERS)


def sentences(paper: str, folder: Path = TEXTS) -> Iterator[Sentence]:
    """Yield the sentences of a paper that have a numeral or compare."""
    section, number = "", 0
    for block in _blocks((folder / f"{paper}.txt").read_text()):
        if HEADING.match(block):
            section = block
            continue
        for text in _split(block):
            if says_something(text):
                number += 1
                yield Sentence(paper, number, section, text)


def says_something(text: str) -> bool:
    """Whether a sentence has a numeral, references aside, or compares."""
    plain = REFERENCE.sub("", text)
    return len(plain.split()) > 3 and bool(NUMERAL.search(plain) or COMPARISON.search(plain))


def _blocks(text: str) -> Iterator[str]:
    """Yield paragraphs; a table's lines, which have tabs, are one, and a sentence goes on over a page's end."""
    blocks: list[str] = []
    for part in re.split(r"\n\s*\n", text):
        lines = [line.strip() for line in part.splitlines() if line.strip()]
        if not lines:
            continue
        block = " ".join(lines)
        if (
            blocks
            and not HEADING.match(blocks[-1])
            and not re.search(r"[.:?!)}$]$", blocks[-1])
            and not HEADING.match(block)
        ):
            blocks[-1] = f"{blocks[-1]} {block}"
        else:
            blocks.append(block)
    yield from blocks


def _split(block: str) -> Iterator[str]:
    pending = ""
    for part in ENDS.split(block):
        pending = f"{pending} {part}".strip()
        if not ABBREVIATED.search(pending):
            yield pending
            pending = ""
    if pending:
        yield pending
