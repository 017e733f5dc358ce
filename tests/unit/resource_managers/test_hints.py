"""Hints of several resources, merged into one choice of NUMA nodes."""

from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.resource_managers.hints import (
    ANY_NODE,
    NO_NODE,
    TopologyHint,
    best_hint,
    by_distance,
    by_size,
    mask_of,
    masks_within,
    nodes_in,
    sums_over,
)

EVERY = 0b1111


def hint(nodes: str, *, preferred: bool) -> TopologyHint:
    """A hint of the nodes in a text such as `01`."""
    return TopologyHint(mask_of(map(int, nodes)), preferred)


def yes(nodes: str) -> TopologyHint:
    return hint(nodes, preferred=True)


def no(nodes: str) -> TopologyHint:
    return hint(nodes, preferred=False)


@pytest.mark.parametrize(
    ("resources", "best"),
    [
        ([], yes("0123")),
        ([[ANY_NODE]], yes("0123")),
        ([[NO_NODE]], no("0123")),
        ([[]], no("0123")),
        ([[yes("0"), yes("1")]], yes("0")),
        ([[yes("1"), no("01")]], yes("1")),
        ([[no("01"), no("0")]], no("0")),
        # The example of the enhancement: CPUs and devices that agree, and that do not
        ([[yes("0"), yes("1"), no("01")], [yes("1"), no("01")]], yes("1")),
        ([[yes("0")], [yes("1")]], no("0123")),
        ([[yes("0"), no("01")], [yes("1"), no("01")]], no("0")),
        ([[yes("01")], [yes("0")]], no("0")),
        ([[yes("01"), no("012")], [yes("01")]], yes("01")),
        ([[ANY_NODE], [yes("2")]], yes("2")),
        ([[NO_NODE], [yes("2")]], no("2")),
        # Without a preferred one: as many nodes as the resource needs that is worst off
        ([[no("0"), no("01"), no("012")], [yes("12"), no("123")]], no("12")),
        ([[no("01"), no("23"), no("0123")], [no("01"), no("0123")]], no("01")),
        ([[no("012"), no("0123")], [no("012"), no("0123")], [no("0123")]], no("0123")),
    ],
)
def test_the_best_choice(resources: list[list[TopologyHint]], best: TopologyHint) -> None:
    assert best_hint(resources, EVERY) == best


def test_of_sets_of_one_size_the_nearest_nodes_are_best_where_that_is_asked_for() -> None:
    far = {0: {0: 10, 1: 30, 2: 20}, 1: {0: 30, 1: 10, 2: 12}, 2: {0: 20, 1: 12, 2: 10}}
    resources = [[yes("01"), yes("02"), yes("12"), no("012")]]
    assert best_hint(resources, 0b111) == yes("01")
    assert best_hint(resources, 0b111, by_distance(far)) == yes("12")
    assert best_hint([*resources, [yes("0"), no("01")]], 0b111, by_distance(far)) == no("01")


def test_sets_of_nodes_are_bits() -> None:
    assert nodes_in(0b1011) == (0, 1, 3)
    assert mask_of([0, 1, 3]) == 0b1011
    assert sorted(masks_within((0, 2))) == [0b1, 0b100, 0b101]
    assert sums_over({0: 5, 2: 7}) == {0b1: 5, 0b100: 7, 0b101: 12}


# The same by trying all combinations, and comparing them two by two


def brute_force(resources: Sequence[Sequence[TopologyHint]], every: int) -> TopologyHint:
    needed = 0
    for resource in resources:
        sizes = [each.nodes.bit_count() for each in resource if each.nodes is not None]
        needed = max(needed, min(sizes, default=0))
    best: TopologyHint | None = None
    for combination in product(*resources):
        masks = [each.nodes for each in combination if each.nodes is not None]
        common = every
        for mask in masks:
            common &= mask
        preferred = all(each.preferred for each in combination) and len(set(masks)) <= 1
        candidate = TopologyHint(common, preferred)
        if common and (best is None or is_better(candidate, best, needed)):
            best = candidate
    return best or TopologyHint(every, preferred=False)


def is_better(candidate: TopologyHint, current: TopologyHint, needed: int) -> bool:
    """Upstream's rules, one after the other."""
    assert candidate.nodes is not None
    assert current.nodes is not None
    narrower = by_size(candidate.nodes) < by_size(current.nodes)
    if candidate.preferred != current.preferred:
        return candidate.preferred
    if candidate.preferred:
        return narrower
    new, old = candidate.nodes.bit_count(), current.nodes.bit_count()
    if old > needed:
        return narrower
    if old == needed:
        return new == needed and narrower
    if new > needed:
        return False
    return new > old if new != old else narrower


hints = st.one_of(
    st.builds(TopologyHint, st.integers(1, 0b111), st.booleans()),
    st.sampled_from([ANY_NODE, NO_NODE]),
)


@given(st.lists(st.lists(hints, max_size=5), max_size=4))
def test_merging_comes_to_what_trying_all_combinations_does(
    resources: list[list[TopologyHint]],
) -> None:
    assert best_hint(resources, 0b111) == brute_force(resources, 0b111)
