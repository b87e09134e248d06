"""What is tried: functions that draw a case, look whether a statement holds there, and say what the case was."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import prod
from random import Random

import numpy as np

from planner.graph import Graph, GraphBuilder
from planner.layout import Layout, Region, Shard, Signature, Ways, owned_by_all, signatures
from planner.plans.plan import Plan
from planner.search import Space
from results.theorems import accounts, alignment, draws, leveldp, recursions

SEVERAL: tuple[tuple[int, ...], ...] = ((2, 2), (2, 2, 2), (3, 2))


@dataclass(frozen=True, slots=True)
class Trial:
    """One case: whether the statement holds, how large the case is, and what it is.

    `ratio` is how many times too many bytes there are, where a statement is about too many.
    """

    holds: bool
    size: int
    what: Callable[[], str]
    ratio: float = 1.0


Draw = Callable[[Random], Trial]


def drawn(rng: Random, *, replicate: bool = False, ways: tuple[tuple[int, ...], ...] = SEVERAL) -> Plan:
    """Draw a plan of a few products whose extents every cut divides."""
    chosen = rng.choice(ways)
    graph = draws.products_drawn(rng, [prod(chosen), 2 * prod(chosen)])
    return draws.plan_drawn(rng, graph, chosen, replicate=replicate)


def equal(plan: Plan, count: object, other: object) -> Trial:
    """Compare two counts of one plan."""
    return Trial(count == other, draws.size(plan.graph), lambda: f"{draws.decisions(plan)}: {count}, not {other}")


# Lemma 2: the cost of a step is a weighted sum of the tensors' sizes


def weighted_sum_of_sizes(rng: Random, make: Callable[..., Graph], samples: list[tuple[int, ...]]) -> Trial:
    """Find the weights from the costs of one plan of a single step at some extents; predict its cost at the last."""
    *known, asked = [make(*extents) for extents in samples]
    first = draws.plan_drawn(rng, known[0], (2,), replicate=True)
    plans = [Plan(graph, 0, first.ways, first.layouts, first.strategies) for graph in (*known, asked)]
    sizes = np.array([[tensor.elements for tensor in plan.graph.tensors.values()] for plan in plans], dtype=float)
    costs = [accounts.counted(plan) for plan in plans]
    weights = np.linalg.lstsq(sizes[:-1], np.array(costs[:-1], dtype=float), rcond=None)[0]
    return equal(plans[-1], round(float(sizes[-1] @ weights), 6), costs[-1])


def lemma_2_on_products(rng: Random) -> Trial:
    asked = tuple(2 * rng.randint(1, 8) for _ in range(3))
    return weighted_sum_of_sizes(rng, draws.product, [(4, 4, 8), (4, 8, 4), (8, 4, 4), asked])


def lemma_2_on_windows(rng: Random) -> Trial:
    return weighted_sum_of_sizes(rng, draws.convolution, [(4, 2), (4, 4), (2 * rng.randint(3, 6), 2)])


# Theorem 1: the total is the sum over steps


def total_of_stored_shares(rng: Random) -> Trial:
    plan = drawn(rng)
    believed, moved = sum(accounts.lemma_2(plan)), accounts.counted(plan)
    return Trial(
        believed == moved,
        draws.size(plan.graph),
        lambda: f"{draws.decisions(plan)}: {believed}, not {moved}",
        max(moved, 1) / max(believed, 1),
    )


def steps_with_extra_inputs(rng: Random) -> Trial:
    plan = drawn(rng)
    return equal(plan, accounts.extra_inputs(plan), accounts.counted_by_step(plan))


# Theorem 2: a tiling is how often each dimension is cut


def flattening(rng: Random, tiles_of: Callable[[tuple[int, int], Layout, Ways], Sequence[object]]) -> Trial:
    """Draw a matrix and a layout; the set of its tiles must be the same whatever the order of the cuts."""
    ways = Ways(rng.choice([(2, 2), (2, 2, 2)]))
    shape = (rng.choice([1, 2]) * prod(ways), rng.choice([1, 2]) * prod(ways))
    layout: Layout = tuple(Shard(rng.choice([0, 1])) for _ in ways)
    other = tuple(rng.sample(layout, len(layout)))
    tiles, reordered = ({*tiles_of(shape, placed, ways)} for placed in (layout, other))
    stored, wanted = (",".join(map(str, of)) for of in (layout, other))
    what = f"a matrix {shape} stored {stored} or {wanted}, ways {ways.factors}"
    return Trial(tiles == reordered, prod(shape), lambda: what)


def contiguous_tiles(shape: tuple[int, int], layout: Layout, ways: Ways) -> list[object]:
    dims = [place.dim if isinstance(place, Shard) else None for place in layout]
    return [accounts.tile(shape, dims, ways, worker) for worker in range(prod(ways))]


def digit_tiles(shape: tuple[int, int], layout: Layout, ways: Ways) -> list[Region]:
    return list(owned_by_all(shape, layout, ways))


def digit_tiles_renumbered(shape: tuple[int, int], layout: Layout, ways: Ways) -> list[object]:
    """Renumber every dimension so that the digits it is cut by come first: then its parts are contiguous."""
    return [
        tuple(
            _renumbered(runs, shape[dim], [s for s, p in enumerate(layout) if p == Shard(dim)], ways)
            for dim, runs in enumerate(region)
        )
        for region in owned_by_all(shape, layout, ways)
    ]


def _renumbered(runs: Iterable[tuple[int, int]], extent: int, cut: list[int], ways: Ways) -> frozenset[int]:
    order = [*cut, *(step for step in range(len(ways)) if step not in cut)]
    leaf = extent // prod(ways)
    numbers = set()
    for start, stop in runs:
        for index in range(start, stop):
            own, number = ways.digits(index // leaf), 0
            for step in order:
                number = number * ways[step] + own[step]
            numbers.add(number * leaf + index % leaf)
    return frozenset(numbers)


# Theorem 3 of Tofu, and what SoyBean's proof rests on: the order of the steps does not matter


def commutes(plan: Plan, rng: Random, count: Callable[[Plan], int]) -> Trial:
    order = rng.choice([order for order in permutations(range(len(plan.ways))) if list(order) != sorted(order)])
    other = accounts.reordered(plan, order)
    cost, other_cost = count(plan), count(other)
    what = f"steps in the order {[step + 1 for step in order]}: {other_cost}, not {cost}: {draws.decisions(plan)}"
    return Trial(
        cost == other_cost, draws.size(plan.graph), lambda: what, max(cost, other_cost) / max(1, min(cost, other_cost))
    )


def believed(plan: Plan) -> int:
    return sum(accounts.lemma_2(plan))


def commutes_believed(rng: Random) -> Trial:
    return commutes(drawn(rng), rng, believed)


def commutes_believed_replicated(rng: Random) -> Trial:
    return commutes(drawn(rng, replicate=True), rng, believed)


def commutes_counted(rng: Random) -> Trial:
    return commutes(drawn(rng, replicate=True), rng, accounts.counted)


def commutes_contiguous(rng: Random) -> Trial:
    return commutes(drawn(rng, ways=((2, 2), (2, 2, 2))), rng, accounts.contiguous)


def commutes_windows(rng: Random) -> Trial:
    graph = draws.convolution(rng.choice([4, 8]), 4)
    return commutes(draws.plan_drawn(rng, graph, (2, 2)), rng, accounts.counted)


def commutes_uneven(rng: Random) -> Trial:
    graph = draws.product(*(rng.randint(4, 9) for _ in range(3)))
    return commutes(draws.plan_drawn(rng, graph, (2, 2)), rng, accounts.counted)


# Theorem 4 of Tofu, 3 of SoyBean: later steps cost at least as much


def perceptron(rng: Random, ways: tuple[int, ...], *, replicate: bool) -> Space:
    extents = [prod(ways) * factor for factor in (1, 2, 4, 8)]
    widths = [rng.choice(extents) for _ in range(rng.choice([2, 3, 4]))]
    return draws.space_of(draws.perceptron(rng.choice(extents), widths), ways, replicate=replicate)


def _of_space(space: Space, holds: bool, figures: str, ratio: float = 1.0) -> Trial:
    graph = space.coarse.graph
    shapes = [tensor.shape for name, tensor in graph.tensors.items() if re.fullmatch(r"x0?|w[1-9]", name)]
    widths = " x ".join(str(shape[-1]) for shape in shapes)
    kept = "S,R" if space.replicate else "S"
    what = f"batch {shapes[0][0]}, widths {widths}, ways {space.ways.factors}, {kept}: {figures}"
    return Trial(holds, draws.size(graph), lambda: what, ratio)


def every_step_chops_alike(rng: Random) -> Trial:
    extents = [8 * factor for factor in (1, 2, 4, 8)]
    graph = draws.chain(rng.choice(extents), [rng.choice(extents) for _ in range(rng.choice([2, 3, 4]))])
    space = draws.space_of(graph, rng.choice([(2, 2), (2, 2, 2)]), replicate=False)
    choice, costs = recursions.at_its_word(space)
    return _of_space(space, len(set(costs)) == 1 and recursions.equal_chop(choice, space), f"steps {costs}")


def steps_rise(rng: Random, *, replicate: bool) -> Trial:
    space = perceptron(rng, rng.choice([(2, 2), (2, 2, 2)]), replicate=replicate)
    choice = recursions.exact(space, "recursive").choice
    plan = Plan(space.coarse.graph, 0, space.ways, space.layouts(choice), space.strategies(choice))
    costs = plan.step_bytes()
    return _of_space(space, list(costs) == sorted(costs), f"steps of {costs} bytes")


def steps_rise_between_factorisations(rng: Random) -> Trial:
    space = draws.space_of(draws.factorisations(4 * rng.randint(1, 4)), (2, 2), replicate=False)
    choice = recursions.exact(space, "recursive").choice
    plan = Plan(space.coarse.graph, 0, space.ways, space.layouts(choice), space.strategies(choice))
    costs = accounts.counted_by_step(plan)
    return equal(plan, costs, tuple(sorted(costs)))


# Theorem 5 of Tofu: the recursion is optimal


def optimal_in_its_own_account(rng: Random, *, replicate: bool) -> Trial:
    space = perceptron(rng, (2, 2), replicate=replicate)
    cost, least = sum(recursions.at_its_word(space)[1]), recursions.best_in_its_own_account(space)
    return _of_space(space, cost == least, f"{cost} bytes, the best sequence {least}", cost / max(1, least))


def optimal_at_its_word(rng: Random, *, replicate: bool) -> Trial:
    space = perceptron(rng, rng.choice([(2, 2), (2, 2, 2)]), replicate=replicate)
    cost, least = space.cost(recursions.at_its_word(space)[0]), recursions.exact(space, "joint").cost
    return _of_space(space, cost == least, f"{cost} bytes, joint {least}", cost / max(1, least))


def optimal_with_extra_inputs(rng: Random, *, replicate: bool) -> Trial:
    space = perceptron(rng, rng.choice([(2, 2), (2, 2, 2)]), replicate=replicate)
    cost, least = (recursions.exact(space, name).cost for name in ("recursive", "joint"))
    return _of_space(space, cost == least, f"{cost} bytes, joint {least}", cost / max(1, least))


def no_worse_than_one_step(rng: Random, *, replicate: bool) -> Trial:
    space = perceptron(rng, rng.choice([(2, 2), (2, 2, 2)]), replicate=replicate)
    whole = draws.space_of(space.coarse.graph, (prod(space.ways),), replicate=replicate)
    cost, once = (recursions.exact(searched, "recursive").cost for searched in (space, whole))
    return _of_space(space, cost <= once, f"{cost} bytes, one {prod(space.ways)}-way step {once}", cost / max(1, once))


def one_step_is_two_alike(rng: Random) -> Trial:
    plan = drawn(rng, replicate=True, ways=((4,),))
    layouts = {name: layout * 2 for name, layout in plan.layouts.items()}
    strategies = {name: strategy * 2 for name, strategy in plan.strategies.items()}
    return equal(plan, accounts.counted(Plan(plan.graph, 0, Ways((2, 2)), layouts, strategies)), accounts.counted(plan))


# Dynamic programming over breadth-first levels, and aligned tilings (SoyBean Sec 4.2)


def levels_are_elimination(rng: Random, tilings: str) -> Trial:
    if rng.random() < 0.5:
        graph = draws.chain(2 * rng.randint(1, 4), [2 * rng.randint(1, 4) for _ in range(rng.randint(2, 4))])
    else:
        graph = draws.web(rng, rng.randint(2, 5))
    least = leveldp.least_cost(graph, tilings)[0]
    exact = recursions.exact(draws.space_of(graph, (2,), replicate="r" in tilings), "joint").cost // accounts.ITEM
    return Trial(least == exact, draws.size(graph), lambda: f"{draws.shapes(graph)}: {least}, not {exact}")


def aligned_are_strategies(rng: Random) -> Trial:
    letters = "ijkl"[: rng.randint(1, 4)]
    operands = ["".join(rng.sample(letters, rng.randint(1, min(3, len(letters))))) for _ in range(rng.randint(1, 2))]
    used = sorted(set("".join(operands)))
    target = "".join(rng.sample(used, rng.randint(0, len(used))))
    b = GraphBuilder()
    inputs = [b.input(f"operand{n}", (2,) * len(own)) for n, own in enumerate(operands)]
    b.apply("einsum", *inputs, name="node", equation=f"{','.join(operands)}->{target}")
    return _aligned(b, f"einsum {','.join(operands)}->{target}")


def aligned_are_strategies_of_windows(rng: Random) -> Trial:
    b = GraphBuilder()
    rows, kernel = rng.choice([(4, 3), (4, 1), (6, 3)])
    x, w = b.input("x", (2, 2, rows, 1)), b.input("w", (2, 2, kernel, 1))
    b.apply("convolution", x, w, name="node", stride=(1, 1), padding=(kernel // 2, 0))
    return _aligned(b, f"a convolution of {rows} rows by windows of {kernel}")


def _aligned(b: GraphBuilder, what: str) -> Trial:
    graph = b.finish({}, {})
    signature: Signature = signatures(graph)["node"]
    aligned, described = alignment.aligned(signature), alignment.described(signature)
    splittable = {tiling: result for tiling, result in described.items() if _even(signature, tiling)}
    more = sorted(set(splittable) - set(aligned), key=str)
    lacking = sorted(set(aligned) - set(splittable), key=str)
    return Trial(
        aligned == splittable,
        sum(prod(shape) for shape in signature.shapes),
        lambda: f"{what}: tilings of the operands that only TDL finds {more}, that TDL lacks {lacking}",
    )


def _even(signature: Signature, tiling: tuple[int | None, ...]) -> bool:
    """Whether what is tiled can be halved."""
    cut = [shape[dim] for shape, dim in zip(signature.shapes, tiling, strict=True) if dim is not None]
    return all(extent % 2 == 0 for extent in cut)


# Where the bytes of a step go (Tofu Sec 5.2, SoyBean Sec 5.1)


def levels_add_up(rng: Random) -> Trial:
    plan = drawn(rng, replicate=True)
    return equal(plan, sum(accounts.counted_by_step(plan)), sum(accounts.counted_by_level(plan)))


def step_is_level(rng: Random) -> Trial:
    plan = drawn(rng)
    return equal(plan, accounts.counted_by_step(plan), accounts.counted_by_level(plan))


def rising_steps_load_the_top_least(rng: Random) -> Trial:
    """Where the recursion's steps cost more and more, traffic should rise from the top level down."""
    space = perceptron(rng, (2, 2), replicate=False)
    choice = recursions.exact(space, "recursive").choice
    plan = Plan(space.coarse.graph, 0, space.ways, space.layouts(choice), space.strategies(choice))
    steps, across = accounts.counted_by_step(plan), accounts.counted_by_level(plan)
    holds = steps[0] > steps[1] or across[0] <= across[1]
    return _of_space(space, holds, f"steps {steps}, across levels {across}, in elements")
