"""Which states stand for others: what a plan does not use, and where that is consistent."""

import numpy as np
import pytest

from planner.layout import Shard
from planner.models import build
from planner.search import Limits, SearchOptions, space_of
from planner.search.coarse import NodeVariable
from planner.search.joint import recursive, representatives_of_states


def stand_ins(name, options, placements="S", choose=None):
    """What stands for each state, by kind and first member of variables, for a plan of the recursion or one chosen."""
    space = space_of(build(name, **options), SearchOptions((2, 2), searcher="joint", placements=placements))
    domains = [space.domain(v, space.candidates(v)) for v in range(len(space.coarse.variables))]
    choice = recursive(space, Limits()).choice if choose is None else [choose(domain.states) for domain in domains]
    of = representatives_of_states(space.coarse, domains, choice)
    return {
        ("node" if isinstance(variable, NodeVariable) else "tensor", variable.members[0]): {
            state: domain.states[at] for state, at in zip(domain.states, indices, strict=True)
        }
        for variable, domain, indices in zip(space.coarse.variables, domains, of, strict=True)
    }


@pytest.fixture(scope="module")
def images():
    return stand_ins("wresnet-50-1", {"batch": 4})


N, C, Y, X = map(Shard, range(4))


def test_images_stand_for_their_rows_and_columns(images):
    stands = images["tensor", "stage1.unit2.conv2"]
    assert stands[Y, X] == stands[Y, Y] == stands[X, N] == (N, N)
    assert stands[C, Y] == (C, N)
    assert stands[N, C] == (N, C)


def test_so_they_do_in_operators_but_not_for_rows_of_the_kernel(images):
    stands = images["node", "stage1.unit2.conv2"]
    assert stands["y", "ci"] == ("n", "ci")
    assert stands["co", "x"] == ("co", "n")
    assert stands["dy", "n"] == ("dy", "n")
    assert images["node", "stage1.unit2.relu1"]["i2", "i1"] == ("i0", "i1")


def test_weights_stand_for_themselves(images):
    for state, stands in images["tensor", "stage1.unit2.conv2.w"].items():
        assert stands == state


def test_sequences_are_for_the_batch_to_stand_for():
    of = stand_ins("transformer-2-16", {"batch": 8, "sequence": 8, "vocabulary": 64}, "S,R")
    stands = of["tensor", "l0.mlp.up"]
    assert stands[Shard(1), Shard(2)] == (Shard(0), Shard(2))
    assert len(set(stands.values())) < len(stands)


def test_where_the_batch_cannot_be_split_again_a_state_stands_for_itself():
    def choose(states):
        """The first state that leaves rows and columns alone, if there is one."""
        unused = {Y, X, "y", "x", "i2", "i3", "r1", "r2", "dy", "dx"}
        return next((state for state in states if not unused & set(state)), states[0])

    stands = stand_ins("wresnet-50-1", {"batch": 2}, choose=choose)["tensor", "stage1.unit2.conv2"]
    assert stands[Y, X] == (Y, X)
    assert stands[Y, C] == (N, C)


@pytest.mark.parametrize("placements", ["S", "S,R", "S,R,P"])
@pytest.mark.parametrize("name", ["wresnet-50-1", "transformer-2-16", "rnn-1-8"])
def test_who_stands_for_a_group_is_of_it(name, placements):
    options = {"batch": 4, "sequence": 8, "vocabulary": 32} if "transformer" in name else {"batch": 4}
    for stands in stand_ins(name, options, placements).values():
        assert all(stands[state] == state for state in stands.values())


def test_a_plan_that_uses_all_axes_leaves_nothing_to_stand_for():
    space = space_of(build("mlp-2-8", batch=8), SearchOptions((2, 2), searcher="joint"))
    domains = [space.domain(v, space.candidates(v)) for v in range(len(space.coarse.variables))]
    everything = [tuple({option for state in domain.states for option in state}) for domain in domains]
    for of in representatives_of_states(space.coarse, domains, everything):
        assert (of == np.arange(len(of))).all()
