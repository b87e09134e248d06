"""The facts as pages: a summary, and one table per catalog."""

from __future__ import annotations

from collections import Counter
from typing import Any

from results.operator_coverage.tables import ALIASES, KINDS

Facts = dict[str, Any]

PAGES = {"MXNet 0.11.0": "mxnet.md", "ONNX 1.23": "onnx.md", "core ATen 2.11": "aten.md"}
COLUMNS = (
    *("operator", "described", "class", "strategies"),
    *("in a graph", "kernel", "gradient", "verified", "composition, or why not"),
)
SOURCES = {
    "MXNet 0.11.0": "the registrations in the sources of Apache MXNet, tag 0.11.0",
    "ONNX 1.23": "`onnx.defs` of the onnx package, opset 28",
    "core ATen 2.11": "the operators tagged `core` in `native_functions.yaml` of PyTorch 2.11.0",
}


def summary(facts: Facts) -> str:
    """README.md: what is claimed, what is found, why they differ."""
    mxnet = facts["counts"]["MXNet 0.11.0"]
    forward, gradients, folder = mxnet["operators"], mxnet["gradients"], facts["tensor folder"]
    imperative, timings = mxnet["imperative functions"], facts["timings"]
    return f"""# Which operators of other frameworks are described

Every operator of three catalogs is in one of the [tables](tables): with a composition of
described operators, which is traced, analysed and evaluated, or with the reason why there is none. Everything below is
made by `python -m results operator-coverage` from those tables; all but the seconds is the same on every machine, and
a test compares it with what the code finds now.

{count_table(facts)}
![coverage](coverage.svg)

*Described directly* is one description; *from parts* is several in a row. *In a graph* counts the operators whose parts
a training graph takes as its nodes: all are in the catalog, and whole numbers go only where a graph takes them. An
operator's class is computed from its parts: *opaque* if one calls a function that the analysis does not look into,
*element-wise* if all are, *output reduction* if one may be split along a reduced index, else *other*. *Kernel*,
*gradient* and *verified* count the operators of which every part has a kernel, a gradient rule, and passes
`operators check`. (Softmax and normalizations are differentiated whole, by the rule of their last part; those of their
parts that have no rule need none, but are counted as without one.) Descriptions without a kernel are not thereby
unchecked: tests compare every composition here that is not random with NumPy, SciPy or PyTorch (gradients with central
differences), and [every strategy](#verification) of every description with the unsplit result.

The rows are in {", ".join(f"[{catalog}]({page})" for catalog, page in PAGES.items())}; the data is in `data.json`.
The names are from

{chr(10).join(f"- {source};" for source in SOURCES.values())[:-1]}.

## MXNet 0.11 in the paper, and here

Tofu (Wang, Huang and Li, *Supporting Very Large Models using Automatic Dataflow Graph Partitioning*) says in Section
4.1: "We found that TDL can describe 134 out of 139 MXNet v0.11 operators. Out of these, 77 are simple element-wise
operators; 2 use the opaque function primitive, and 11 have output reductions." It gives no list.

| | paper | here: registered in `src/` | here: `src/operator/tensor/` only |
|---|---|---|---|
| operators | 139 | {forward["operators"]} | {folder["operators"]} |
| described | 134 | {forward["described"]} | {folder["described"]} |
| element-wise | 77 | {forward["element-wise"]} | {folder["element-wise"]} |
| opaque | 2 | {forward["opaque"]} | {folder["opaque"]} |
| with output reduction | 11 | {forward["output reduction"]} | {folder["output reduction"]} |
| ... of which by selection by value | - | {forward["selection by value"]} | {folder["selection by value"]} |
| not element-wise | 57 or 47 | {_rest(forward)} | {_rest(folder)} |

Why they differ:

- **The paper's counts contradict each other.** Section 4.2 says "Out of 47 non-element-wise MXNet operators
  describable by TDL, 11 have at least one reduction dimension"; but 134 - 77 is 57, not 47.
- **139 is no count of what 0.11.0 registers.** That is {forward["operators"]} forward operators in `src/`; beside them
  {gradients["operators"]} gradients, {imperative["operators"]} functions of the imperative interface only,
  {mxnet["plugins"]["operators"]} operators of plugins and {len(ALIASES)} second names.
  One subset of 139 is easily found: the forward operators of `src/operator/tensor/` without four internal ones, of
  which 77 are in the files of element-wise operators. If that is the paper's set (a guess), it has no convolution,
  pooling or fully connected layer.
- **More is element-wise here**, because the class is computed: broadcasting operators whose smaller operand lacks
  dimensions, `clip`, `where`, optimizers and the forward side of loss layers read the output's own coordinates.
- **Indexing by data is described here.** The paper says that MXNet has no operator that needs it, but 0.11.0 registers
  `Embedding`, `take`, `batch_take`, `pick`, `one_hot` and, outside that folder, samplers and region pooling. As a sum
  over the indexed dimension of `where(index == v, x[v], 0)` they read affine indices only, and split along what they
  index with a reduction. That is a description of the result: an implementation looks the element up.
- **More is opaque here**: sorting, Fourier transforms, triangular solves, and random numbers drawn by rejection, each
  computed whole along its own dimensions (or per element) and split along all others.
- Of the paper's reasons for leaving operators out, "sparse tensor manipulations" fits none of the names that 0.11.0
  registers. The reasons found here are:

{reasons(facts, "MXNet 0.11.0")}
## What is left out of the others

ONNX:

{reasons(facts, "ONNX 1.23")}
Core ATen:

{reasons(facts, "core ATen 2.11")}
## Training steps of PyTorch

The ATen operators that PyTorch 2.13 makes of a training step, update included, of four families of models (not
decomposed to core ATen). Each call that differs in shapes is run by the catalog's kernels on the values that PyTorch
has there, and compared with its result (of random masks, and of memory that is not set, only shape and kind):

{steps_table(facts["verification"]["training steps"])}
## Verification

`operators check` verifies every operator with a kernel. The tests go further: every strategy of every description, with
a kernel or without, is split on at least 50 distinct shapes. A kernel runs on uneven parts, contiguous or in several
runs, and on those of random plans; descriptions are evaluated in parts; halos must cover what parts read.

{soundness_table(facts["verification"]["soundness"])}
{fewer_shapes(facts["verification"]["fewer shapes"])}
That such checks find what is wrong is shown by mutants, each one change off: in a description a sign, a stride, an
offset, an index variable, a reducer, a function, a term; in a kernel its values or where it puts them; strategies that
an operator does not have; gradients of the wrong sign, size, operand or node. A change that provably means nothing is
no mutant. (The tests try some changes of each description; here it is all.)

{mutant_table(facts["verification"]["mutants"])}
{without_kernel(facts["verification"]["mutants without a kernel"])}
A description and a kernel that are wrong in the same way agree with each other, and no check of one against the other
can tell: see [what verification cannot find](../../docs/how-to/operator.md#what-verification-cannot-find).
So the catalog's descriptions are compared with PyTorch, and those of the tables with NumPy, SciPy or PyTorch.

## Length of the descriptions

From `def` to the end without decorator and docstring, or a table's row with the functions it names; helpers that
several descriptions share are not counted.

{lines_table(facts["lines"])}
## Time of the analysis

Describing and analysing from cold, nothing remembered (median of {timings["repeats"]}, on {timings["machine"]}):

| | applications | seconds |
|---|---|---|
| the kernels' catalog, every operator once | {_timing(timings["catalog"])} |
| every distinct application in the tables | {_timing(timings["tables"])} |

A description is remembered per operator, ranks and attributes, never per shape: the attribute `extents` is no part of
what it is remembered by. Some attributes are numbers of elements, such as the `count` that a mean divides by; those a
new batch size changes. Of the training graphs of some models:

{descriptions_table(facts["descriptions"])}
"""


def soundness_table(found: Facts) -> str:
    """Count what was split, and how often."""
    heads = ("operators", "strategies", "shapes", "fewest shapes of a strategy")
    checks = list(dict.fromkeys(kind for own in found.values() for kind in own["checks"]))
    lines = [f"| | {' | '.join(heads)} | {' | '.join(f'checks: {kind}' for kind in checks)} |"]
    lines += ["|---" * (1 + len(heads) + len(checks)) + "|"]
    for group, own in found.items():
        cells = [*(own[head] for head in heads), *(own["checks"].get(kind, "-") for kind in checks)]
        lines.append(f"| {group} | {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def fewer_shapes(found: dict[str, list[Any]]) -> str:
    """Name the operators that have fewer shapes."""
    named = [f"`{name}` ({number}: {reason})" for name, (number, reason) in found.items()]
    return f"Fewer shapes than 50 has only {', '.join(named)}.\n"


def mutant_table(found: dict[str, list[int]]) -> str:
    """Count mutants, and those killed."""
    lines = [f"| {kind} | {made} | {killed} |" for kind, (killed, made) in found.items()]
    total = [sum(own[number] for own in found.values()) for number in (1, 0)]
    return (
        "\n".join(["| of | mutants | killed |", "|---|---|---|", *lines, f"| all | {total[0]} | {total[1]} |"]) + "\n"
    )


def steps_table(found: dict[str, dict[str, int]]) -> str:
    """Count the operators of every family's training step."""
    heads = list(next(iter(found.values())))
    lines = [f"| | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    lines += [f"| {family} | {' | '.join(str(own[head]) for head in heads)} |" for family, own in found.items()]
    return "\n".join(lines) + "\n"


def without_kernel(found: Facts) -> str:
    """Say how many mutants of descriptions without a kernel their oracles find."""
    named = ", ".join(f"`{name}` ({count})" for name, count in found["alive"].items())
    made, killed = found["mutants"], found["killed"]
    return f"""A description without a kernel is held against oracles only: results of NumPy, SciPy, PyTorch, for it or
for what is composed of it. Of {made} such mutants they find {killed}. Of the {made - killed} others some mean the same
(twice an index is 0 where the index is), and some change what the oracles' cases do not show: {named}.
"""


def lines_table(found: dict[str, dict[str, int]]) -> str:
    """Count descriptions by their lines."""
    lines = ["| descriptions | all | 1 line | 2 | 3 | more | within three | the longest |", "|---" * 8 + "|"]
    for group, own in found.items():
        few, total = [own.get(str(number), 0) for number in (1, 2, 3)], sum(own.values())
        longest = max(map(int, own))
        cells = [total, *few, total - sum(few), f"{sum(few) / total:.0%}", longest]
        lines.append(f"| {group} | {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def descriptions_table(found: dict[str, Facts]) -> str:
    """Count what is described of each model."""
    heads = ("nodes", "distinct with shapes", "descriptions", "more at another batch", "of")
    lines = [f"| | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    for model, own in found.items():
        cells = [own[key] for key in ("nodes", "signatures", "descriptions", "at another batch")]
        lines.append(f"| {model} | {' | '.join(map(str, cells))} | {', '.join(f'`{name}`' for name in own['new'])} |")
    return "\n".join(lines)


def _rest(found: dict[str, int]) -> int:
    return found["described"] - found["element-wise"]


def _timing(found: Facts) -> str:
    return f"{found['applications']} | {found['seconds']:.3f}"


def count_table(facts: Facts) -> str:
    """Counts of every group of every catalog."""
    heads = ("operators", "described", "directly", "from parts", *KINDS)
    lines = [f"| | {' | '.join(heads)} | in a graph | kernel | gradient | verified |", "|---" * (len(heads) + 5) + "|"]
    for catalog, groups in facts["catalogs"].items():
        for group, rows in groups.items():
            found = facts["counts"][catalog][group]
            every = [
                sum(_complete(row.get(fact)) for row in rows.values()) for fact in ("kernel", "gradient", "verified")
            ]
            carried = sum(row.get("graph", False) for row in rows.values())
            cells = [*(found[head] for head in heads), carried, *every]
            lines.append(f"| {catalog}, {group} | {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def reasons(facts: Facts, catalog: str) -> str:
    """Every reason for leaving operators out, with the operators."""
    left: dict[str, list[str]] = {}
    for rows in facts["catalogs"][catalog].values():
        for name, row in rows.items():
            if row["described"] == "no":
                left.setdefault(row["reason"], []).append(name)
    return (
        "\n".join(f"- {reason} ({', '.join(f'`{name}`' for name in names)})" for reason, names in left.items()) + "\n"
    )


def page(facts: Facts, catalog: str) -> str:
    """One catalog's table."""
    lines = [f"# {catalog}", "", f"From {SOURCES[catalog]}. Made by `run.py`; see [the summary](README.md).", ""]
    lines += [
        "Strategies are given for every application: a variable alone is split and concatenated, `k:Sum` is",
        "combined by a sum, and those in parentheses cannot be split. `2 of 3`: so many of the parts have it.",
        "*Verified* is by `operators check`, which needs a kernel; what has none is compared by tests all the same,",
        "its values with another library's and every strategy with the unsplit result.",
        "",
    ]
    for group, rows in facts["catalogs"][catalog].items():
        told = Counter(row["described"] for row in rows.values())
        lines += [f"## {group}: {told['directly']} directly, {told['from parts']} from parts, {told['no']} not", ""]
        lines += [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
        lines += [_line(name, row) for name, row in rows.items()] + [""]
    return "\n".join(lines)


def _line(name: str, row: Facts) -> str:
    if row["described"] == "no":
        return f"| `{name}` | no | | | | | | | {row['reason']} |"
    found = "<br>".join(_strategies(one, several=len(row["strategies"]) > 1) for one in row["strategies"])
    text = "`" + row["composition"].replace("; ", "`<br>`") + "`" + (f"<br>{row['note']}" if "note" in row else "")
    facts = ["yes" if row["graph"] else "-", *(_share(row[fact]) for fact in ("kernel", "gradient", "verified"))]
    cells = [found, *facts, text]
    return f"| `{name}` | {row['described']} | {row['class']} | {' | '.join(cells)} |"


def _strategies(found: Facts, *, several: bool) -> str:
    split = [name if reducer is None else f"{name}:{reducer}" for name, reducer in found["split"].items()]
    refused = f" ({' '.join(found['refused'])})" if found["refused"] else ""
    return (f"{found['operator']}: " if several else "") + (" ".join(split) or "none") + refused


def _complete(share: list[int] | None) -> bool:
    return share is not None and share[0] == share[1]


def _share(share: list[int]) -> str:
    have, parts = share
    return "yes" if have == parts else f"{have} of {parts}" if have else "-"
