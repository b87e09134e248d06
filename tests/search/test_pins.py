"""Pins against brute force over plans that are restricted by hand, and against searches of restricted domains."""

import random
import re
from dataclasses import replace
from itertools import product

import pytest

import planner
from planner.errors import PlanError
from planner.layout import Ways
from planner.search import SearchOptions, Ties, space_of
from planner.search.coarse import TensorVariable
from planner.search.joint import best_plan_among_candidates, joint
from planner.search.pins import Degree, Pin, load_pins, read_forbids, read_pins
from planner.search.solver.problem import Limits
from tests.search.brute import least_bytes
from tests.search.graphs import random_graph

UNTIED = Ties(elementwise=False, gradients=False, updates=False, unrolled=False, repeats=False)
WAYS = ((2,), (3,), (2, 2))
MOST = 60_000
READERS = (read_pins, read_forbids)


def drawn_rules(chance, space, count):
    """Draw what some tensors or nodes may have at every step: [(kind, name, steps, forbids)]."""
    names = list(space.coarse.variable_of)
    rules = []
    for kind, name in chance.sample(names, min(count, len(names))):
        steps = space.options_at_every_step(space.coarse.variable_of[kind, name])
        forbids = chance.random() < 0.4 and all(len(options) > 1 for options in steps)
        rules.append((kind, name, [str(chance.choice(options)) for options in steps], forbids))
    return rules


def as_options(rules):
    """Write rules as pins and what is forbidden."""
    texts = {False: [], True: []}
    for _, name, steps, forbids in rules:
        texts[forbids].append(f"{name}={','.join(steps)}")
    return {"pins": texts[False], "forbids": texts[True]}


def candidates_by_hand(space, rules):
    """Return the states of every variable that the rules leave; nothing of pins is used."""
    candidates = [list(space.candidates(v)) for v in range(len(space.coarse.variables))]
    for kind, name, steps, forbids in rules:
        v = space.coarse.variable_of[kind, name]
        candidates[v] = [
            state
            for state in candidates[v]
            if all((str(option) == step) != forbids for option, step in zip(state, steps, strict=True))
        ]
    return candidates


def drawn_case(seed):
    """Return a graph, ways, rules, and the least bytes that brute force finds, of the first that is small enough."""
    chance = random.Random(seed)
    while True:
        graph, ways = random_graph(chance.randrange(1000)), chance.choice(WAYS)
        space = space_of(graph, SearchOptions(Ways(ways), placements="S,R", ties=UNTIED))
        rules = drawn_rules(chance, space, chance.randint(1, 3))
        candidates = candidates_by_hand(space, rules)
        if all(candidates) and (least := least_bytes(space, MOST, candidates)) is not None:
            return graph, ways, rules, least


@pytest.mark.parametrize("seed", range(50))
def test_a_pinned_search_costs_what_brute_force_over_restricted_plans_costs(seed):
    graph, ways, rules, least = drawn_case(seed)
    plan = planner.plan(graph, ways=ways, searcher="joint", ties=UNTIED, **as_options(rules))
    assert plan.total_bytes == least
    chosen = {"tensor": plan.layouts, "node": plan.strategies}
    for kind, name, steps, forbids in rules:
        for option, step in zip(chosen[kind][name], steps, strict=True):
            assert (str(option) == step) != forbids


LAYERS = planner.model("transformer-3-32", batch=8)


@pytest.mark.parametrize("seed", range(6))
def test_merged_layers_are_told_apart_by_their_pins(seed):
    """Against the exact search of restricted domains of the graph in which no layers are merged."""
    chance = random.Random(seed)
    merging = Ties(gradients=False, updates=False)
    space = space_of(LAYERS, SearchOptions(Ways((2, 2)), ties=replace(merging, repeats=False)))
    assert len(space_of(LAYERS, SearchOptions(Ways((2, 2)), ties=merging)).coarse.variables) < len(
        space.coarse.variables
    )
    rules = [rule for rule in drawn_rules(chance, space, 2) if all(candidates_by_hand(space, [rule]))]
    expected = best_plan_among_candidates(space, candidates_by_hand(space, rules), Limits())
    assert expected.cost == expected.lower_bound
    given = {name: read(given) for (name, given), read in zip(as_options(rules).items(), READERS, strict=True)}
    pinned = space_of(LAYERS, SearchOptions(Ways((2, 2)), ties=merging, **given))
    assert joint(pinned, Limits()).cost == expected.cost


def test_the_cost_of_a_pin_is_that_of_a_search_with_it():
    plan, chance = planner.plan(LAYERS, workers=4), random.Random(1)
    weights = [tensor.name for tensor in LAYERS.tensors.values() if tensor.role == "weight" and tensor.init]
    for _ in range(8):
        pin = f"{chance.choice(weights)}={chance.choice(('R', 'S0'))}"
        answer = planner.why_not(plan, pin, workers=4)
        new = planner.plan(LAYERS, workers=4, pins=[pin])
        assert answer.nbytes == (plan.total_bytes, new.total_bytes)
        assert answer.extra == new.total_bytes - plan.total_bytes
        assert bool(answer.changes) == (new.layouts != plan.layouts)


def test_the_cost_of_a_pin_where_a_plan_copies_tensors():
    layout = {"parallel": "dp=2,tp=2,sp,zero=3"}
    plan, pin = planner.plan(LAYERS, **layout), "l0.mlp.up.w=R"
    answer, new = planner.why_not(plan, pin, **layout), planner.plan(LAYERS, **layout, pins=[pin])
    assert plan.graph != LAYERS
    assert answer.nbytes == (plan.total_bytes, new.total_bytes)
    assert [change.names for change in answer.changes] == [("l0.mlp.up.w",)]


def test_a_degree_that_the_plan_cannot_have_is_no_kept_pin():
    with pytest.raises(PlanError, match="a degree needs named parallelism"):
        planner.why_not(planner.plan(LAYERS, workers=2), "tp=2", workers=2)


def test_the_changes_are_those_between_the_plans():
    plan = planner.plan(LAYERS, ways=(4,))
    name = next(name for name, layout in plan.layouts.items() if name.endswith(".w") and str(layout[0]) == "R")
    answer, other = (
        planner.why_not(plan, f"{name}=S0", ways=(4,)),
        planner.plan(plan.graph, ways=(4,), pins=[f"{name}=S0"]),
    )
    named = {name for change in answer.changes for name in change.names}
    changed = {name for name, layout in plan.layouts.items() if other.layouts[name] != layout}
    assert named == changed - set(LAYERS.updates.values())
    assert name in named
    assert f"with {name}=S0" in str(answer)


def test_what_a_plan_keeps_costs_nothing():
    plan = planner.plan(LAYERS, ways=(2, 2))
    name, layout = next(iter(plan.layouts.items()))
    answer = planner.why_not(plan, f"{name}={','.join(map(str, layout))}", ways=(2, 2))
    assert (answer.extra, answer.changes, answer.is_kept) == (0, (), True)


def test_pins_in_named_parallelism_and_of_degrees():
    graph = planner.model("transformer-2-32", batch=8)
    plan = planner.plan(graph, parallel="tp=2,dp=2", pins=["tp=2", "l0.mlp.up.w=R"])
    assert set(map(str, plan.layouts["l0.mlp.up.w"])) == {"R"}
    assert set(map(str, plan.layouts["l1.mlp.up.w"])) == {"R", "S1"}
    with pytest.raises(PlanError, match=r"pin 'tp=4': differs from --parallel, which has 2"):
        planner.plan(graph, parallel="tp=2,dp=2", pins=["tp=4"])
    with pytest.raises(PlanError, match="a degree needs named parallelism"):
        planner.plan(graph, workers=4, pins=["tp=4"])


def test_words_of_named_parallelism():
    words = ("zero=1", "micro-batch=2", "recompute=full", "schedule=interleaved:2", "pp=2", "zero=0")
    read = [(degree.axis, degree.degree) for word in words for degree in read_pins(word)]
    named = [("zero", 1), ("micro_batch", 2), ("recompute", "full"), ("schedule", "interleaved:2"), ("pp", 2)]
    assert read == [*named, ("zero", 0)]
    assert [pin.asked for word in words for pin in read_pins(word)] == [*words]
    assert read_pins({"tp": 4, "zero": 1}) == (Degree("tp", 4), Degree("zero", 1))
    assert isinstance(*read_pins("zero=S0"), Pin)
    with pytest.raises(PlanError, match="zero from 0 to 3, found 4"):
        read_pins("zero=4")
    with pytest.raises(PlanError, match="expected recompute none, selective, full, found 'some'"):
        read_pins("recompute=some")
    with pytest.raises(PlanError, match="pin 'tp=4' and pin 'tp=2' conflict; give only one"):
        read_pins(["tp=4", "pp=2", "tp=2"])
    assert read_pins(["tp=4", "tp=4"])
    graph = planner.model("mlp-2-32", batch=8)
    assert planner.plan(graph, parallel="dp=2,zero=1", pins=["zero=1"]).workers == 2
    with pytest.raises(PlanError, match=r"pin 'zero=1': differs from --parallel, which has 0"):
        planner.plan(graph, parallel="dp=2", pins=["zero=1"])


@pytest.mark.parametrize("forbidden", ["l0.mlp.up.w=S7", "l*.mlp.up.w=R|S2", "l*.mlp.up.b=S1"])
def test_what_no_tensor_can_have_cannot_be_forbidden(forbidden):
    with pytest.raises(PlanError, match=rf"forbid '{re.escape(forbidden)}': expected a dimension below [12], found S"):
        planner.plan(LAYERS, ways=(2, 2), forbids=[forbidden])


def test_what_one_of_many_tensors_can_have_can_be_forbidden():
    plan = planner.plan(LAYERS, ways=(2, 2), forbids=["l*.mlp.*=S1", "l*.mlp.up.w=any,S1"])
    assert not any("S1" in map(str, plan.layouts[f"l{layer}.mlp.up.w"]) for layer in range(3))


def test_ways_that_cannot_keep_a_pin_are_left_out():
    plan = planner.plan(LAYERS, workers=4, pins=["l0.mlp.up.w=S0,S1"])
    assert plan.ways == (2, 2)
    assert list(map(str, plan.layouts["l0.mlp.up.w"])) == ["S0", "S1"]


def test_open_steps_alternatives_and_mappings():
    plan = planner.plan(LAYERS, ways=(2, 2), pins={"l*.mlp.up.w": "any,S0|S1"}, forbids={"l*.mlp.down.w": ["R", "S0"]})
    for layer in range(3):
        assert str(plan.layouts[f"l{layer}.mlp.up.w"][1]) in ("S0", "S1")
        assert list(map(str, plan.layouts[f"l{layer}.mlp.down.w"])) == ["S1", "S1"]


def test_every_searcher_keeps_pins_that_it_can():
    for searcher in ("recursive", "joint", "model-parallel", "data-parallel", "hybrid"):
        plan = planner.plan(planner.model("mlp-2-16", batch=8), ways=(2, 2), searcher=searcher, pins=["fc1.w=S0"])
        assert list(map(str, plan.layouts["fc1.w"])) == ["S0", "S0"], searcher


@pytest.mark.parametrize(
    ("pins", "message"),
    [
        (["l0.mlp.upp.w=S0"], r"pin 'l0.mlp.upp.w=S0': no tensor matches: did you mean l0.mlp.up.w"),
        (["h.*.mlp.*=S0"], r"pin 'h\.\*\.mlp\.\*=S0': no tensor matches; nearest are l\*\.mlp\.up\.w, "),
        (["wte=i"], r"pin 'wte=i': no node matches; nearest are (?!.*(grad|update)).*l\*\."),
        (["l0.mlp.up=S9"], r"leaves no option: at step 1, tensor l0.mlp.up may have S0"),
        (["l0.mlp.up=nothing"], r"leaves no option: at step 1, node l0.mlp.up may have"),
        (["l0.mlp.up.w=S0", "l*.mlp.up.w=S1"], r"pin 'l0.mlp.up.w=S0' and pin 'l\*.mlp.up.w=S1' conflict"),
        (["l0.mlp.up.w=S0,S0,S0"], r"expected one placement, or one for each of 2 steps, found 3"),
        (["l0.mlp.up.w"], r"pins: expected GLOB=PLACEMENT, as in 'l\*.mlp.up.w=S0', found 'l0.mlp.up.w'"),
        (["l0.mlp.up.w=S0|i"], r"found both placements \(of tensors\) and choices \(of nodes\)"),
        (["l0.mlp.up.w=any"], r"expected a placement at some step, found only any"),
        ([3], r"pins: expected GLOB=PLACEMENT.*, found 3"),
    ],
)
def test_what_makes_no_sense_is_one_line(pins, message):
    with pytest.raises(PlanError, match=message):
        planner.plan(LAYERS, ways=(2, 2), pins=pins)


def test_a_collision_with_what_is_forbidden_names_both():
    with pytest.raises(PlanError, match=r"pin 'l0.mlp.up.w=S0' and forbid 'l0.mlp.\*.w=S0' conflict"):
        planner.plan(LAYERS, ways=(2, 2), pins=["l0.mlp.up.w=S0"], forbids=["l0.mlp.*.w=S0"])


def test_tied_tensors_collide_with_a_hint():
    graph = planner.model("transformer-3-32", batch=8)
    coarse = space_of(graph, SearchOptions(Ways((2,)), ties=Ties())).coarse
    tied = next(
        v for v in coarse.variables if isinstance(v, TensorVariable) and len(v.members) > 3 and len(v.shape) > 1
    )
    pins = [f"{tied.members[0]}=S0", f"{tied.members[1]}=R"]
    with pytest.raises(PlanError, match=r"conflict: .* tied to each other \(--untie\)"):
        planner.plan(graph, ways=(2,), ties=Ties(repeats=False), pins=pins)


def test_files(tmp_path):
    path = tmp_path / "pins.yaml"
    path.write_text("pins:\n  wte.weight: S0\n  tp: 4\nforbids:\n  h.*.w: [R, 'S1,any']\n")
    pins, forbids = load_pins(path)
    assert pins == (Pin.parse("wte.weight=S0"), Degree("tp", 4))
    assert forbids == read_forbids(["h.*.w=R", "h.*.w=S1,any"])
    path.write_text("pin: {}\n")
    with pytest.raises(PlanError, match=r"pins.yaml: .*known keys, found 'pin'"):
        load_pins(path)


def test_pins_are_read_from_all_that_is_given():
    pin = Pin.parse("a.*=S0")
    assert read_pins("a.*=S0") == read_pins(["a.*=S0"]) == read_pins({"a.*": "S0"}) == read_pins(pin) == (pin,)
    for option, step in product(("S0", "R"), range(3)):
        assert pin.allows(option, step) == (option == "S0")


@pytest.mark.parametrize(("seed", "name", "maker"), [(10, "left0", "left0"), (69, "fc", "fc"), (117, "fc", "fc")])
def test_a_sum_that_is_to_stay_in_terms_does_or_the_pins_are_named(seed, name, maker):
    graph = random_graph(seed)
    space = space_of(graph, SearchOptions(Ways((2,)), placements="S,R,P", ties=UNTIED))
    candidates = candidates_by_hand(space, [("tensor", name, ["P+"], False)])
    least = least_bytes(space, 5 * MOST, candidates)
    options = {"ways": (2,), "placements": "S,R,P", "ties": UNTIED}
    for searcher in ("recursive", "joint"):
        plan = planner.plan(graph, searcher=searcher, pins=[f"{name}=P+"], **options)
        assert list(map(str, plan.layouts[name])) == ["P+"]
        assert plan.total_bytes == least
    with pytest.raises(PlanError, match=rf"'{name}=P\+' and pin '{maker}=i': a sum would have to stay partial"):
        planner.plan(graph, pins=[f"{name}=P+", f"{maker}=i"], **options)
