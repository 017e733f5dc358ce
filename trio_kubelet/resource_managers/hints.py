"""Topology hints: on which NUMA nodes a resource can be had, and the one choice that suits all.

A hint is a set of nodes, as bits of a number, and whether it is one of the smallest sets that will
do (`preferred`). What a combination of hints comes to depends only on the nodes that they have in
common, and on whether all are preferred and the same. So not all combinations are tried: resources
are merged one after the other, and a machine of 8 nodes has 255 outcomes at most.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

from attrs import frozen

NodeMask = int
"""A set of NUMA nodes: bit `n` is node `n`."""


@frozen
class TopologyHint:
    """A set of nodes from which a resource can be had; None for wherever."""

    nodes: NodeMask | None
    preferred: bool


Hints = Mapping[str, Sequence[TopologyHint] | None]
"""The hints of each resource: None for one that does not care, none for one that cannot be had."""

MaskOrder = Callable[[NodeMask], tuple[float, ...]]
"""The sort key of sets of nodes, the best first."""

ANY_NODE = TopologyHint(None, preferred=True)
NO_NODE = TopologyHint(None, preferred=False)


def nodes_in(mask: NodeMask) -> tuple[int, ...]:
    """The numbers of the nodes in a set."""
    return tuple(node for node in range(mask.bit_length()) if mask >> node & 1)


def mask_of(nodes: Iterable[int]) -> NodeMask:
    """The set of these nodes."""
    mask = 0
    for node in nodes:
        mask |= 1 << node
    return mask


@cache
def masks_within(nodes: tuple[int, ...]) -> tuple[NodeMask, ...]:
    """All sets of some of these nodes, but for the empty one."""
    masks = [0]
    for node in nodes:
        masks += [mask | 1 << node for mask in masks]
    return tuple(masks[1:])


def sums_over(amounts: Mapping[int, int]) -> Mapping[NodeMask, int]:
    """The amount that the nodes of each set have together, for all sets of these nodes."""
    sums = [0]
    for amount in amounts.values():
        sums += [each + amount for each in sums]
    return dict(zip(masks_within(tuple(amounts)), sums[1:], strict=True))


def fewest_nodes(amounts: Iterable[int], wanted: int) -> int:
    """The number of nodes that have so much together, at least; 0 if all have less."""
    total = 0
    for number, amount in enumerate(sorted(amounts, reverse=True), start=1):
        total += amount
        if total >= wanted:
            return number
    return 0


@cache
def hints_by_size(nodes: tuple[int, ...], preferred: int) -> Mapping[NodeMask, TopologyHint]:
    """The hints of all sets of these nodes, which prefer those of so many."""
    return {
        mask: TopologyHint(mask, preferred=mask.bit_count() == preferred)
        for mask in masks_within(nodes)
    }


def by_size(mask: NodeMask) -> tuple[float, ...]:
    """Fewer nodes are better, then lower ones."""
    return mask.bit_count(), mask


def by_distance(distances: Mapping[int, Mapping[int, int]]) -> MaskOrder:
    """Fewer nodes are better, then those that are nearer to one another, then lower ones."""

    def order(mask: NodeMask) -> tuple[float, ...]:
        nodes = nodes_in(mask)
        sums = sum(distances[one][other] for one in nodes for other in nodes)
        return mask.bit_count(), sums, mask

    return order


def best_hint(
    hints: Iterable[Sequence[TopologyHint]], every_node: NodeMask, order: MaskOrder = by_size
) -> TopologyHint:
    """Return the best outcome of one hint for each resource: the nodes that they have in common.

    A preferred one if there is one: of hints that are all preferred, and the same. Else one of as
    many nodes as the resource that is worst off needs: fewer are too few for it, more are more
    than need be.
    """
    chosen = tuple(hints)
    preferred = _preferred_by_all(chosen, every_node)
    if preferred:
        return TopologyHint(min(preferred, key=order), preferred=True)
    outcomes = _in_common(chosen, every_node)
    needed = max(map(_fewest_nodes, chosen), default=0)

    def rank(mask: NodeMask) -> tuple[float, ...]:
        size = mask.bit_count()
        return size > needed, abs(size - needed), *order(mask)

    return TopologyHint(min(outcomes, key=rank, default=every_node), preferred=False)


def _preferred_by_all(
    resources: Sequence[Sequence[TopologyHint]], every_node: NodeMask
) -> set[NodeMask]:
    """The sets of nodes that each resource prefers, or that it does not care about."""
    wanted = [{hint.nodes for hint in resource if hint.preferred} for resource in resources]
    told = {mask for masks in wanted for mask in masks if mask is not None}
    common = {mask & every_node for mask in told if all({mask, None} & each for each in wanted)}
    if all(None in masks for masks in wanted):
        common.add(every_node)
    return common - {0}


def _in_common(resources: Sequence[Sequence[TopologyHint]], every_node: NodeMask) -> list[NodeMask]:
    """All sets of nodes, but for the empty one, that one hint of each resource have in common.

    Combinations are counted, not made: those whose hints all hold a set are the product of the
    numbers of hints that do; from these follows which of them have no more than the set in common.
    """
    nodes = nodes_in(every_node)
    masks = (0, *masks_within(nodes))
    combinations = dict.fromkeys(masks, 1)
    for resource in resources:
        holding = dict.fromkeys(masks, 0)
        for mask in {every_node if hint.nodes is None else hint.nodes for hint in resource}:
            holding[mask & every_node] += 1
        _add_supersets(holding, nodes, 1)
        combinations = {mask: count * holding[mask] for mask, count in combinations.items()}
    _add_supersets(combinations, nodes, -1)
    return [mask for mask, count in combinations.items() if mask and count]


def _add_supersets(counts: dict[NodeMask, int], nodes: Iterable[int], sign: int) -> None:
    """Add to each set's count those of all sets that hold it, or with sign -1 take them away."""
    for node in nodes:
        bit = 1 << node
        for mask in counts:
            if not mask & bit:
                counts[mask] += sign * counts[mask | bit]


def _fewest_nodes(hints: Iterable[TopologyHint]) -> int:
    return min((hint.nodes.bit_count() for hint in hints if hint.nodes is not None), default=0)
