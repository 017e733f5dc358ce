"""List calls: the filters of CRI, and the random order in which Go answers.

Go iterates its maps in random order, so neither the entries of a list nor the pairs of their
labels and annotations come in the same order twice; an agent that compares answers as bytes
would see changes where there are none. Encoding a thousand entries takes longer than an agent
may take to relist them, so each entry keeps a few encodings of itself, in different orders, as
long as its state lasts, and a list is put together from those.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar, cast

from betterproto import Message

from trio_kubelet.hollow.records import (
    EncodedResponse,
    HollowContainer,
    HollowSandbox,
    container_entry,
    has_labels,
    sandbox_entry,
)
from trio_kubelet.rpc import Code, RpcError, is_present
from trio_kubelet.rpc.stubs.runtime import v1 as cri

ORDERS = 4

ENTRIES_OF_A_PIECE = 50

MOST_BYTES = 16 << 20
"""Of a message that containerd sends, by default."""

_Record = TypeVar("_Record", HollowContainer, HollowSandbox)
_Response = TypeVar("_Response", bound=Message)
_Entry = TypeVar("_Entry", cri.Container, cri.PodSandbox)


def matching_containers(
    containers: Iterable[HollowContainer], wanted: cri.ContainerFilter
) -> list[HollowContainer]:
    """The containers that fit every field which the filter sets."""
    # The filter is read once: a look into a message takes as long as ten comparisons.
    wanted_id, sandbox_id, labels = wanted.id, wanted.pod_sandbox_id, wanted.label_selector
    state = wanted.state.state if is_present(wanted.state) else None
    return [
        container
        for container in containers
        if (not wanted_id or container.id == wanted_id)
        and (not sandbox_id or container.sandbox.id == sandbox_id)
        and (state is None or container.state == state)
        and (not labels or has_labels(container.config.labels, labels))
    ]


def matching_sandboxes(
    sandboxes: Iterable[HollowSandbox], wanted: cri.PodSandboxFilter
) -> list[HollowSandbox]:
    """The sandboxes that fit every field which the filter sets."""
    wanted_id, labels = wanted.id, wanted.label_selector
    state = wanted.state.state if is_present(wanted.state) else None
    return [
        sandbox
        for sandbox in sandboxes
        if (not wanted_id or sandbox.id == wanted_id)
        and (state is None or sandbox.state == state)
        and (not labels or has_labels(sandbox.config.labels, labels))
    ]


def container_list(
    containers: list[HollowContainer], order: random.Random | None
) -> cri.ListContainersResponse:
    """The answer of ListContainers, shuffled if there is a source of disorder."""
    data = _joined(_encoded(containers, _encode_container, order))
    response = EncodedResponse(data, cri.ListContainersResponse)
    return cast("cri.ListContainersResponse", response)


def sandbox_list(
    sandboxes: list[HollowSandbox], order: random.Random | None
) -> cri.ListPodSandboxResponse:
    """The answer of ListPodSandbox, shuffled if there is a source of disorder."""
    data = _joined(_encoded(sandboxes, _encode_sandbox, order))
    response = EncodedResponse(data, cri.ListPodSandboxResponse)
    return cast("cri.ListPodSandboxResponse", response)


def container_pieces(
    containers: list[HollowContainer], order: random.Random | None
) -> Sequence[cri.StreamContainersResponse]:
    """The answers of StreamContainers: the list in pieces."""
    entries = _encoded(containers, _encode_container, order)
    return pieces(entries, cri.StreamContainersResponse)


def sandbox_pieces(
    sandboxes: list[HollowSandbox], order: random.Random | None
) -> Sequence[cri.StreamPodSandboxesResponse]:
    """The answers of StreamPodSandboxes: the list in pieces."""
    return pieces(_encoded(sandboxes, _encode_sandbox, order), cri.StreamPodSandboxesResponse)


def pieces(entries: Sequence[bytes], response_type: type[_Response]) -> Sequence[_Response]:
    """Return answers that have all entries, some in each. An entry is an answer with one entry."""
    return [
        cast(
            "_Response",
            EncodedResponse(b"".join(entries[at : at + ENTRIES_OF_A_PIECE]), response_type),
        )
        for at in range(0, len(entries), ENTRIES_OF_A_PIECE)
    ]


def _encode_container(container: HollowContainer, order: random.Random | None) -> bytes:
    entry = _shuffled(container_entry(container), order)
    return bytes(cri.ListContainersResponse(containers=[entry]))


def _encode_sandbox(sandbox: HollowSandbox, order: random.Random | None) -> bytes:
    entry = _shuffled(sandbox_entry(sandbox), order)
    return bytes(cri.ListPodSandboxResponse(items=[entry]))


def _encoded(
    records: list[_Record],
    encode: Callable[[_Record, random.Random | None], bytes],
    order: random.Random | None,
) -> list[bytes]:
    """All records as list entries, of each one of its encodings, which are made when missing."""
    orders, picks = 1, [0] * len(records)
    if order:
        # A key for each is twice as fast as `shuffle`, and one `choices` as many of `choice`.
        by_chance = order.random
        records.sort(key=lambda _: by_chance())
        orders, picks = ORDERS, order.choices(range(ORDERS), k=len(records))
    entries = []
    for record, pick in zip(records, picks, strict=True):
        known = record.encodings.setdefault(record.state, [])
        if len(known) < orders:
            known.append(encode(record, order))
            pick = -1
        entries.append(known[pick])
    return entries


def _joined(entries: Sequence[bytes]) -> bytes:
    """One message of all entries. Raises RpcError for more than a message can have."""
    data = b"".join(entries)
    if len(data) > MOST_BYTES:
        raise RpcError(
            Code.RESOURCE_EXHAUSTED,
            f"grpc: trying to send message larger than max ({len(data)} vs. {MOST_BYTES})",
        )
    return data


def _shuffled(entry: _Entry, order: random.Random | None) -> _Entry:
    if order:
        entry.labels = _shuffled_map(entry.labels, order)
        entry.annotations = _shuffled_map(entry.annotations, order)
    return entry


def _shuffled_map(pairs: dict[str, str], order: random.Random) -> dict[str, str]:
    return dict(order.sample(list(pairs.items()), len(pairs)))
