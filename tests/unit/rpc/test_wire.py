"""A list response is split as a decoder would split it, and only what changed is decoded again."""

import random
from collections.abc import Sequence

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from tests.turns import making_test_data
from trio_kubelet.rpc import Code, ListReuse, RpcError, wire
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.rpc.wire import split_entries

labels = st.dictionaries(st.text(min_size=1, max_size=9), st.text(max_size=200), max_size=5)
ids = st.text(max_size=70) | st.text(min_size=130, max_size=140)
containers = st.builds(
    cri.Container,
    id=ids,
    pod_sandbox_id=ids,
    metadata=st.builds(cri.ContainerMetadata, name=st.text(), attempt=st.integers(0, 2**32 - 1)),
    image_ref=st.text(max_size=300),
    state=st.sampled_from(list(cri.ContainerState)),
    created_at=st.integers(-(2**63), 2**63 - 1),
    labels=labels,
    annotations=labels,
)


def encoded(entries: Sequence[cri.Container]) -> bytes:
    return bytes(cri.ListContainersResponse(containers=list(entries)))


def shuffled(container: cri.Container, order: random.Random) -> cri.Container:
    """The same container with its maps in another order, as Go would write it the next time."""
    again = cri.Container().parse(bytes(container))
    for name in ("labels", "annotations"):
        items = list(getattr(again, name).items())
        order.shuffle(items)
        setattr(again, name, dict(items))
    return again


@given(st.lists(containers, max_size=5))
def test_a_response_is_split_into_ids_and_entries(entries: list[cri.Container]) -> None:
    split = split_entries(encoded(entries))
    assert [identifier.decode() for identifier, _ in split] == [c.id for c in entries]
    assert [cri.Container().parse(data) for _, data in split] == entries


def test_fields_may_stand_in_any_order_and_unknown_ones_are_passed_over() -> None:
    unknown = b"\xf8\x07\x05\xf9\x07" + bytes(8) + b"\xfd\x07" + bytes(4) + b"\xfa\x07\x01x"
    entry = b"\x30\x02" + unknown + b"\x0a\x01a"
    response = unknown + b"\x0a" + bytes([len(entry)]) + entry + unknown
    assert split_entries(response) == [(b"a", entry)]


@given(st.lists(containers, min_size=1, max_size=3), st.data())
def test_a_response_that_is_cut_short_is_noticed_or_lacks_whole_entries(
    entries: list[cri.Container], data: st.DataObject
) -> None:
    response = encoded(entries)
    cut = data.draw(st.integers(0, len(response) - 1))
    try:
        split = split_entries(response[:cut])
    except ValueError:
        return
    assert [identifier.decode() for identifier, _ in split] == [c.id for c in entries[: len(split)]]
    assert encoded([cri.Container().parse(entry) for _, entry in split]) == response[:cut]


@given(st.binary(max_size=200))
def test_no_bytes_break_the_split(response: bytes) -> None:
    try:
        split_entries(response)
    except ValueError:
        return


@given(containers, st.randoms(use_true_random=False), st.sampled_from(list(cri.ContainerState)))
async def test_of_a_known_container_only_another_state_is_a_change(
    container: cri.Container, order: random.Random, state: cri.ContainerState
) -> None:
    reuse = ListReuse(cri.Container)
    (first,) = await reuse.decode(encoded([container]))
    later = shuffled(container, order)
    later.state = state
    (again,) = await reuse.decode(encoded([later]))
    assert again == later
    assert (again is first) == (state == container.state and bool(container.id))


@st.composite
def two_responses(draw: st.DrawFn) -> tuple[list[cri.Container], list[cri.Container]]:
    """Lists of the same few containers, in any states and orders, some twice, some missing."""
    names = st.sampled_from([f"{number:064x}" for number in range(3)]) | st.sampled_from(["", "b"])
    pool = draw(
        st.lists(st.builds(cri.Container, id=names, labels=labels), unique_by=lambda c: c.id)
    )
    order = draw(st.randoms(use_true_random=False))

    def listed() -> list[cri.Container]:
        has_all, has_one_more = draw(st.booleans()), draw(st.booleans())
        chosen = draw(st.permutations(pool)) if has_all else []
        if pool and has_one_more:
            chosen = [*chosen, draw(st.sampled_from(pool))]
        entries = [shuffled(container, order) for container in chosen]
        for entry in entries:
            entry.state = draw(st.sampled_from([cri.ContainerState(1), cri.ContainerState(2)]))
        return entries

    return listed(), listed()


@given(two_responses())
async def test_what_is_known_of_one_response_never_changes_what_another_says(
    responses: tuple[list[cri.Container], list[cri.Container]],
) -> None:
    reuse = ListReuse(cri.Container)
    first, second = responses
    known = await reuse.decode(encoded(first))
    assert list(known) == first
    now = list(await reuse.decode(encoded(second)))
    if now == list(known):
        for container in second:
            now.remove(container)
        assert not now
    else:
        assert now == second


async def test_a_response_with_nothing_new_is_not_taken_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reuse = ListReuse(cri.Container)
    sizes = (0, 5, 300, 40_000)
    entries = [cri.Container(id=f"{n:064x}", image_ref="x" * n, state=1) for n in sizes]  # type: ignore[arg-type]
    known = await reuse.decode(encoded(entries))
    monkeypatch.setattr(wire, "split_entries", None)
    assert await reuse.decode(encoded(entries[::-1])) is known


@pytest.mark.parametrize("identifier", ["", "a", "a" * 63, "a" * 65, "a" * 130])
async def test_ids_of_any_length_are_told_apart(identifier: str) -> None:
    reuse = ListReuse(cri.Container)
    one, two = (cri.Container(id=identifier + end, image_ref=end * 3) for end in "ad")
    other = cri.Container(id=identifier + "b", image_ref="ccc")
    known = await reuse.decode(encoded([one, two]))
    assert await reuse.decode(encoded([two, one])) is known
    assert await reuse.decode(encoded([one, other])) == (one, other)


async def test_an_unchanged_entry_is_not_decoded_again_however_its_maps_are_ordered() -> None:
    names = [str(number) for number in range(20)]
    container = cri.Container(
        id="a",
        state=cri.ContainerState(1),
        labels={name: name for name in names},
        annotations={name: name for name in names},
    )
    reuse = ListReuse(cri.Container)
    first_bytes = encoded([container])
    (first,) = await reuse.decode(first_bytes)
    order = random.Random(1)
    for _ in range(5):
        response = encoded([shuffled(container, order)])
        assert response != first_bytes
        (again,) = await reuse.decode(response)
        assert again is first


async def test_an_entry_whose_state_changed_is_decoded_again() -> None:
    reuse = ListReuse(cri.Container)
    created = cri.Container(id="a", state=cri.ContainerState(0))
    running = cri.Container(id="a", state=cri.ContainerState(1))
    assert await reuse.decode(encoded([created])) == (created,)
    assert await reuse.decode(encoded([running])) == (running,)
    assert await reuse.decode(encoded([created])) == (created,)


async def test_entries_come_in_the_order_of_the_response() -> None:
    reuse = ListReuse(cri.Container)
    one, two, three = (cri.Container(id=name) for name in "123")
    assert await reuse.decode(encoded([one, two])) == (one, two)
    assert await reuse.decode(encoded([three, two, one])) == (three, two, one)


async def test_the_same_tuple_tells_that_nothing_came_went_or_changed() -> None:
    reuse = ListReuse(cri.Container)
    one, two, three = (cri.Container(id=name) for name in "123")
    ended = cri.Container(id="2", state=cri.ContainerState(2))
    first = await reuse.decode(encoded([one, two]))
    assert await reuse.decode(encoded([two, one])) is first
    for entries in ([two], [two, three], [two, two], [ended, three], [one, two]):
        known = await reuse.decode(encoded([one, two]))
        now = await reuse.decode(encoded(entries))
        assert list(now) == entries
        assert (now is known) is (entries == [one, two])
    nameless = encoded([cri.Container(), cri.Container()])
    assert await reuse.decode(nameless) is not await reuse.decode(nameless)
    assert await reuse.decode(encoded([])) is await reuse.decode(encoded([]))


async def test_an_entry_that_went_away_is_forgotten() -> None:
    reuse = ListReuse(cri.Container)
    await reuse.decode(encoded([cri.Container(id="a", image_ref="old")]))
    assert await reuse.decode(encoded([])) == ()
    (again,) = await reuse.decode(encoded([cri.Container(id="a", image_ref="new")]))
    assert again.image_ref == "new"


async def test_entries_without_an_id_are_never_taken_for_each_other() -> None:
    reuse = ListReuse(cri.Container)
    entries = [cri.Container(image_ref="x"), cri.Container(image_ref="y")]
    assert await reuse.decode(encoded(entries)) == tuple(entries)
    assert await reuse.decode(encoded(entries[::-1])) == tuple(entries[::-1])


async def test_a_malformed_response_is_an_rpc_error_and_keeps_what_was_known() -> None:
    reuse = ListReuse(cri.Container)
    response = encoded([cri.Container(id="a")])
    (first,) = await reuse.decode(response)
    with pytest.raises(RpcError, match="list of Container") as caught:
        await reuse.decode(response[:-1])
    assert caught.value.code is Code.INTERNAL
    assert (await reuse.decode(response))[0] is first


async def test_an_entry_that_cannot_be_read_is_left_out_and_named_once() -> None:
    good = cri.Container(id="good")
    bad = b"\x0a\x03bad" + b"\x12\x01\xff"  # the sandbox's id is no UTF-8
    response = encoded([good]) + b"\x0a" + bytes([len(bad)]) + bad
    reuse = ListReuse(cri.Container)
    with capture_logs() as logs:
        first = await reuse.decode(response)
        assert [container.id for container in first] == ["good"]
        assert (await reuse.decode(response))[0] is first[0]
    assert [(entry["id"], entry["kind"]) for entry in logs] == [("bad", "Container")]
    assert [container.id for container in await reuse.decode(encoded([good]))] == ["good"]


def thousands(count: int = 4000) -> list[cri.Container]:
    """Containers with labels, as many as one tenant can have."""
    with making_test_data():
        labels = {f"io.kubernetes.{number}": "x" * 20 for number in range(10)}
        return [cri.Container(id=f"{n:064x}", image_ref="i", labels=labels) for n in range(count)]


async def test_of_thousands_of_new_entries_a_few_are_decoded_in_a_turn() -> None:
    """No turn is longer than `tests.turns` allows; to decode all at once takes twice as long."""
    entries, reuse = thousands(16_000), ListReuse(cri.Container)
    with making_test_data():
        response = encoded(entries)
    decoded = await reuse.decode(response)
    assert len(decoded) == len(entries)
    assert await reuse.decode(response) is decoded


async def test_a_response_that_comes_while_another_is_decoded_waits_for_it() -> None:
    entries, reuse = thousands(), ListReuse(cri.Container)
    with making_test_data():
        response, later = encoded(entries), encoded(entries[:-1])
    lists: list[tuple[cri.Container, ...]] = []

    async def decode(response: bytes) -> None:
        lists.append(await reuse.decode(response))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(decode, response)
        nursery.start_soon(decode, later)
    first, second = sorted(lists, key=len, reverse=True)
    assert all(one is other for one, other in zip(first, second, strict=False))


async def test_a_decoding_that_is_cancelled_keeps_what_was_known() -> None:
    entries, reuse = thousands(), ListReuse(cri.Container)
    with making_test_data():
        before, after = encoded(entries[:2]), encoded(entries)
    known = await reuse.decode(before)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reuse.decode, after)
        for _ in range(5):
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert await reuse.decode(before) is known
