"""List calls: the filters of CRI, and the random order in which Go answers.

Go iterates its maps in random order, so neither the entries of a list nor the pairs of their
labels and annotations come in the same order twice; an agent that compares answers as bytes
would see changes where there are none.
"""

import random
from collections.abc import Iterable
from typing import TypeVar

import betterproto

from trio_kubelet.hollow.records import (
    Container,
    Sandbox,
    container_entry,
    has_labels,
    sandbox_entry,
)
from trio_kubelet.rpc.stubs.runtime import v1 as cri

_Entry = TypeVar("_Entry", cri.Container, cri.PodSandbox)


def matching_containers(
    containers: Iterable[Container], wanted: cri.ContainerFilter
) -> list[Container]:
    """The containers that fit every field which the filter sets."""
    by_state = betterproto.serialized_on_wire(wanted.state)
    return [
        container
        for container in containers
        if wanted.id in ("", container.id)
        and wanted.pod_sandbox_id in ("", container.sandbox.id)
        and (not by_state or container.state == wanted.state.state)
        and has_labels(container.config.labels, wanted.label_selector)
    ]


def matching_sandboxes(sandboxes: Iterable[Sandbox], wanted: cri.PodSandboxFilter) -> list[Sandbox]:
    """The sandboxes that fit every field which the filter sets."""
    by_state = betterproto.serialized_on_wire(wanted.state)
    return [
        sandbox
        for sandbox in sandboxes
        if wanted.id in ("", sandbox.id)
        and (not by_state or sandbox.state == wanted.state.state)
        and has_labels(sandbox.config.labels, wanted.label_selector)
    ]


def container_entries(
    containers: Iterable[Container], order: random.Random | None
) -> list[cri.Container]:
    """The entries of ListContainers, shuffled if there is a source of disorder."""
    return _shuffled([container_entry(container) for container in containers], order)


def sandbox_entries(
    sandboxes: Iterable[Sandbox], order: random.Random | None
) -> list[cri.PodSandbox]:
    """The entries of ListPodSandbox, shuffled if there is a source of disorder."""
    return _shuffled([sandbox_entry(sandbox) for sandbox in sandboxes], order)


def _shuffled(entries: list[_Entry], order: random.Random | None) -> list[_Entry]:
    if order is None:
        return entries
    order.shuffle(entries)
    for entry in entries:
        entry.labels = _shuffled_map(entry.labels, order)
        entry.annotations = _shuffled_map(entry.annotations, order)
    return entries


def _shuffled_map(pairs: dict[str, str], order: random.Random) -> dict[str, str]:
    return dict(order.sample(list(pairs.items()), len(pairs)))
