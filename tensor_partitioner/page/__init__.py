"""Pages: a decision, a plan with its reports, or several side by side, as one self-contained HTML file.

The file includes the charting library and loads nothing from the network. Needs the extra `page` (Jinja).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from planner.files import write_file
from planner.parallel import Parallel
from planner.plans.plan import Plan
from planner.report.schema import Report
from simulator.projection.network import cluster
from simulator.report import Settings, plan_program, simulation_of
from simulator.simulation import Simulation
from tensor_partitioner import __version__, display
from tensor_partitioner.decision.record import Decision, published_scores
from tensor_partitioner.decision.sources import hint
from tensor_partitioner.display import number, percent, product, quantity, seconds
from tensor_partitioner.page.decisions import asked, cards_of, gap_of, machine_inputs, shown, stack_inputs
from tensor_partitioner.page.runs import (
    Figure,
    Lanes,
    Page,
    occupied,
    plan_part,
    run_part,
    schedule_lanes,
    simulated_lanes,
    task_lanes,
)
from topologies import Machine, TopologyError, load_topology
from topologies.tree import Uses, machine_tree

SAME = 1e-3
"""Relative difference up to which two predictions of a step count as equal."""


def decision_content(decision: Decision, *, machine: str | Path | None = None, plan: Plan | None = None) -> Page:
    """Return the content of a decision's page.

    `machine` is a name or a file (default: the name in the decision), `plan` the plan of the best candidate.
    """
    built = _known(machine or decision.machine.name)
    model, facts = decision.model, decision.machine
    advice = "" if built is None else hint(model.dtype, built.devices[0])
    return Page(
        title=f"How to train {model.name} on {facts.devices} x {facts.device}",
        lead=f"{decision.verdict} {advice}".rstrip(), cards=cards_of(decision), trust=(gap_of(decision),),
        commands=decision.commands, decision=shown(decision), parallel=Parallel.read(decision.best.parallel),
        plan=None if plan is None else plan_part(plan, is_named=decision.best.parallel is not None),
        timelines=(schedule_lanes(decision.best),),
        machine=() if built is None else machine_tree(built, _loads(plan, built, decision.best.seconds_per_step)),
        machine_note=_machine_note(built, facts.devices, plan),
        inputs=(*asked(decision), *stack_inputs(decision.stack), *machine_inputs(built)), published=published_scores(),
    )  # fmt: skip


def _loads(plan: Plan | None, machine: Machine, step_s: float) -> Uses:
    """Return the bytes that a plan sends over each link, and the link's utilization over a step of `step_s` seconds."""
    if plan is None or plan.workers > len(machine.devices):
        return {}
    crossed = [0.0] * len(machine.resources)
    for source, target in zip(*np.nonzero(plan.bytes), strict=True):
        for resource, amount in machine.route(int(source), int(target)).uses:
            crossed[resource] += amount * float(plan.bytes[source, target])
    links = [(link, nbytes) for link, nbytes in zip(machine.resources, crossed, strict=True) if link.kind == "link"]
    return {link.name: (round(nbytes), nbytes / (link.capacity * step_s)) for link, nbytes in links}


def _machine_note(built: Machine | None, devices: int, plan: Plan | None) -> str:
    if built is None:
        return ""
    drawn = len(built.devices)
    some = f"The first {drawn} of {devices} devices. " if drawn < devices else ""
    if plan is not None and plan.workers <= drawn:
        return (
            "Load: the bytes that workers lack of each other, each pair's on its route, as a share of what the link "
            "could carry in a step."
        )
    return f"{some}Load on links is known for a plan that is simulated: report plan.json simulated.json."


def _known(machine: str | Path) -> Machine | None:
    """Return a machine; None if it is neither a file nor a known name."""
    try:
        return cluster(machine).built
    except TopologyError:
        return None


def plan_content(plan: Plan, reports: Sequence[Report], *, name: str = "plan.json", machine: str | None = None) -> Page:
    """Return the content of the page of a plan and its reports.

    `machine` is the name or file of a topology (default: that of the first simulated report). If there is one, the step
    is simulated again with the report's settings, because reports have neither timelines nor memory over time. Raises
    TopologyError if the machine is unknown or too small.
    """
    simulated = next((report for report in reports if report.source == "simulator"), None)
    built = load_topology(machine) if machine else None if simulated is None else _known(simulated.machine)
    again = None if built is None else _simulation(plan, built, simulated)
    uses = {} if again is None else {use.name: (use.nbytes, use.utilisation) for use in again.links}
    model = plan.search.model or plan.graph.name or "model"
    return Page(
        title=f"How {model} is split over {plan.workers} workers", lead=_lead(plan, model, reports),
        cards=tuple(_cards(plan, reports)), trust=(*_trust(plan, reports), *_stale(again, simulated)),
        commands=tuple(_commands(plan, name, built)), plan=plan_part(plan, built), runs=tuple(map(run_part, reports)),
        timelines=tuple(_timelines(plan, again, reports)),
        occupied=() if again is None else tuple(occupied(again, plan.workers)),
        machine=() if built is None else machine_tree(built, uses),
        machine_note="Load: the share of the step for which a link is busy, in its busier direction.",
        inputs=tuple(_plan_inputs(plan, built, reports)),
    )  # fmt: skip


def _simulation(plan: Plan, machine: Machine, report: Report | None) -> Simulation:
    """Simulate a step with the settings of a report."""
    told: Mapping[str, Any] = {} if report is None else report.settings
    settings = Settings(**{field.name: told[field.name] for field in fields(Settings) if field.name in told})
    return simulation_of(plan_program(plan, machine, settings.prefetch), settings)


def _stale(again: Simulation | None, report: Report | None) -> Iterator[str]:
    """Yield a warning if the new simulation takes another time than the report says."""
    said_s = None if report is None else report.seconds_per_step
    if again is None or not said_s or abs(again.seconds / said_s - 1) <= SAME:
        return
    yield (
        f"Simulated again for the timeline, the step takes {seconds(again.seconds)}, not the {seconds(said_s)} of the "
        "report: the plan, the machine or the simulator has changed since."
    )


def _timelines(plan: Plan, again: Simulation | None, reports: Iterable[Report]) -> Iterator[Lanes]:
    if again is not None:
        yield simulated_lanes(again, plan.workers)
    for report in reports:
        if (report.source == "executor" or again is None) and (timeline := task_lanes(report)) is not None:
            yield timeline


def _lead(plan: Plan, model: str, reports: Iterable[Report]) -> str:
    """Return a few sentences on what a plan is and what it costs."""
    said = [
        f"{model} trains on {plan.workers} workers, split in {len(plan.ways)} steps ({product(plan.ways.factors)}); a "
        f"step moves {quantity(plan.total_bytes, 'B')} between them."
    ]
    for report in reports:
        verb = "is predicted to take" if report.source == "simulator" else "took"
        said.append(f"On {report.machine} it {verb} {seconds(report.seconds_per_step)}.")
        if report.overfull:
            said.append(f"It does not fit in the memory of {', '.join(report.overfull)}.")
    return " ".join(said)


def _cards(plan: Plan, reports: Iterable[Report]) -> Iterator[tuple[str, str, str]]:
    moved = quantity(plan.total_bytes, "B")
    yield "Bytes moved in a step", moved, f"{plan.total_bytes:,} bytes between {plan.workers} workers"
    for report in reports:
        word = "Predicted step" if report.source == "simulator" else "Measured step"
        speed = "" if report.samples_per_s is None else f"{number(report.samples_per_s)} samples/s"
        yield word, seconds(report.seconds_per_step), f"{speed} on {report.machine}".strip()
        if fullest := max(report.devices, key=lambda device: device.peak_bytes, default=None):
            of = "" if fullest.capacity_bytes is None else f" of {quantity(fullest.capacity_bytes, 'B')}"
            yield "Fullest memory", quantity(fullest.peak_bytes, "B"), f"{fullest.device}{of}: {fullest.verdict}"


def _trust(plan: Plan, reports: Sequence[Report]) -> Iterator[str]:
    """Yield how far the plan may be from the optimum, and how predictions and measurements agree."""
    search = plan.search
    if search.gap is not None:
        exact = "it is the least there is" if search.is_exact else f"it costs at most {percent(search.gap)} more"
        yield f"Search: against a proven lower bound of its space of plans, {exact}."
    else:
        yield "Search: this searcher proves no bound; plan --search joint does."
    by_source: dict[str, Report] = {report.source: report for report in reports}
    for report in reports:
        if report.planned_bytes != report.bytes:
            yield f"Bytes moved in the {report.source}'s report differ from those planned: do not trust it."
        if report.source == "simulator" and report.compute_seconds and report.seconds_per_step:
            factor = report.seconds_per_step / max(report.compute_seconds)
            yield (
                f"The predicted step takes {factor:.3g} times as long as its busiest worker computes; the bars "
                "under “Where time goes” say what the rest is."
            )
    if len(by_source) == 2:
        yield _agreement(by_source)
    else:
        yield "Seconds are predicted from the figures under Inputs; only a run says what they really are."


def _agreement(by_source: Mapping[str, Report]) -> str:
    """Return how a prediction compares with a measurement."""
    simulated, executed = by_source["simulator"], by_source["executor"]
    if not simulated.seconds_per_step or not executed.seconds_per_step:
        return "One of the two reports has no seconds to compare."
    if simulated.machine != executed.machine:
        return (
            f"The prediction is for {simulated.machine}, the run on {executed.machine}: their seconds do not compare."
        )
    ratio = simulated.seconds_per_step / executed.seconds_per_step
    return f"Predicted over measured seconds: {ratio:.3g} (1 would be exact)."


def _commands(plan: Plan, name: str, machine: Machine | None) -> Iterator[str]:
    yield f"simulate {name} --topo {'MACHINE' if machine is None else machine.name} --json simulated.json"
    yield f"mpirun -n {plan.workers} execute {name} --json executed.json"
    yield "compare simulated.json executed.json"
    yield f"export-plan {name} --to dtensor"


def _plan_inputs(plan: Plan, machine: Machine | None, reports: Iterable[Report]) -> Iterator[Figure]:
    training = plan.training_record()
    yield Figure("training", "samples of a step", str(training.batch), "the plan")
    yield Figure("training", "micro-batches", str(training.micro_batches), "the plan")
    yield Figure("training", "computes in", str(training.precision), "the plan")
    for report in reports:
        for name, value in report.settings.items():
            yield Figure(f"{report.source}'s settings", name, str(value), "its report")
    yield from machine_inputs(machine)


FOLDER = Path(__file__).parent
TEMPLATES, VENDOR = FOLDER / "templates", FOLDER / "vendor"
LIBRARIES = ("d3.min.js", "plot.umd.min.js")
SCRIPTS = ("base.js", "candidates.js", "sliders.js", "model.js", "time.js", "machine.js", "start.js")


def write(page: Page, path: str | Path) -> None:
    """Write a page to a file."""
    write_file(path, html(page))


def write_beside(pages: Mapping[str, Page], path: str | Path) -> None:
    """Write several pages side by side, by name, under a table of their key figures."""
    cards = {name: {card: (value, meaning) for card, value, meaning in page.cards} for name, page in pages.items()}
    rows = dict.fromkeys(card for of_page in cards.values() for card in of_page)
    frames = {name: html(page) for name, page in pages.items()}
    write_file(path, _rendered("beside.html", cards=cards, rows=rows, frames=frames))


def html(page: Page) -> str:
    """Return a page as HTML."""
    libraries = [(VENDOR / name).read_text() for name in LIBRARIES]
    scripts = [(TEMPLATES / name).read_text() for name in SCRIPTS]
    return _rendered("page.html", page=page, data=_embedded(page), libraries=libraries, scripts=scripts)


def _rendered(template: str, **values: object) -> str:
    style = (TEMPLATES / "page.css").read_text()
    return _environment().get_template(template).render(style=style, version=__version__, **values)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters |= {
        "seconds": display.seconds,
        "bytes": lambda nbytes: display.quantity(nbytes, "B"),
        "percent": display.percent,
    }
    return environment


def _embedded(page: Page) -> str:
    """Return the page's data as JSON, escaped so that no text can end the script element."""
    text = msgspec.json.encode(page).decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
