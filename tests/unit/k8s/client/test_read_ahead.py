"""The order in which the frames of a watch are handed out, and which are left out."""

import math
from collections.abc import AsyncIterator
from itertools import cycle

import pytest
import trio
from trio.testing import MockClock

from tests.apiserver.server import ApiServer
from tests.turns import making_test_data
from tests.unit.k8s.client.test_reflector import reflection
from trio_kubelet.k8s import ConfigMap, Pod
from trio_kubelet.k8s.client import Frame, FrameType, ObjectChanged, WatchEvent
from trio_kubelet.k8s.client.api import FrameHead, ReceivedFrame
from trio_kubelet.k8s.client.read_ahead import (
    LEAST_BYTES,
    MOST_BYTES,
    SHARE_BYTES_AT_ONCE,
    SHARE_BYTES_PER_SECOND,
    ReadAhead,
    Shares,
    WaitingFrames,
)
from trio_kubelet.k8s.kinds import CONFIG_MAPS

ADDED, MODIFIED, DELETED = FrameType.ADDED, FrameType.MODIFIED, FrameType.DELETED
Short = tuple[FrameType, str, str]
"""A type, `namespace/name`, and a UID."""


async def never_read() -> Frame[Pod]:
    raise NotImplementedError


def received(version: int, short: Short, size_bytes: int = 1) -> ReceivedFrame[Pod]:
    type_, key, uid = short
    namespace, name = key.split("/")
    head = FrameHead(type_, str(version), namespace, name, uid)
    return ReceivedFrame(head, size_bytes, never_read)


def handed_out(waiting: WaitingFrames[Pod], now: float = 0.0) -> list[int]:
    """The versions of all frames that may go at a time, in their order."""
    versions = []
    while (frame := waiting.take(now)) is not None:
        versions.append(int(frame.head.resource_version))
    return versions


@pytest.mark.parametrize(
    ("frames", "versions"),
    [
        ([(MODIFIED, "n/a", "1"), (MODIFIED, "n/a", "1"), (MODIFIED, "n/a", "1")], [2]),
        ([(ADDED, "n/a", "1"), (MODIFIED, "n/a", "1"), (ADDED, "n/b", "2")], [1, 2]),
        ([(MODIFIED, "n/a", "1"), (ADDED, "n/b", "2"), (MODIFIED, "n/a", "1")], [2, 1]),
        ([(ADDED, "n/a", "1"), (ADDED, "n/b", "2"), (ADDED, "m/c", "3")], [0, 2, 1]),
        # A removal goes at once, with the last version before it.
        ([(ADDED, "n/a", "1"), (MODIFIED, "m/b", "2"), (DELETED, "m/b", "2")], [1, 2, 0]),
        ([(MODIFIED, "n/a", "1"), (MODIFIED, "n/a", "1"), (DELETED, "n/a", "1")], [1, 2]),
        ([(DELETED, "n/a", "1"), (ADDED, "n/b", "2"), (DELETED, "n/c", "3")], [0, 2, 1]),
        # What came and went before its turn is told of to nobody.
        ([(ADDED, "n/a", "1"), (ADDED, "m/b", "2"), (DELETED, "m/b", "2")], [0]),
        ([(ADDED, "n/a", "1"), (MODIFIED, "n/a", "1"), (DELETED, "n/a", "1")], []),
        ([(DELETED, "n/a", "1"), (ADDED, "n/a", "2"), (DELETED, "n/a", "2")], [0]),
        ([(ADDED, "n/a", "1"), (DELETED, "n/a", "1"), (MODIFIED, "n/a", "2")], [2]),
        # Incarnations are never taken for each other.
        ([(ADDED, "n/a", "1"), (ADDED, "n/a", "2"), (DELETED, "n/a", "2")], [0, 1, 2]),
        ([(MODIFIED, "n/a", "1"), (ADDED, "n/a", "2"), (MODIFIED, "n/a", "2")], [0, 2]),
        ([(DELETED, "n/a", "1"), (DELETED, "n/a", "2")], [0, 1]),
        ([], []),
    ],
)
def test_what_is_handed_out_and_in_which_order(frames: list[Short], versions: list[int]) -> None:
    waiting: WaitingFrames[Pod] = WaitingFrames()
    for version, short in enumerate(frames):
        waiting.put(received(version, short))
    assert handed_out(waiting) == versions
    assert not waiting


def test_a_namespace_that_has_had_its_share_waits_and_nobody_else_does() -> None:
    waiting: WaitingFrames[Pod] = WaitingFrames()
    large = MOST_BYTES - LEAST_BYTES
    waiting.put(received(1, (MODIFIED, "greedy/a", "1"), large))
    waiting.put(received(2, (MODIFIED, "greedy/b", "2"), 1))
    waiting.put(received(3, (MODIFIED, "greedy/c", "3"), 1))
    assert handed_out(waiting) == [1, 2, 3]
    for version, name in enumerate(("a", "b"), start=4):
        waiting.put(received(version, (MODIFIED, f"greedy/{name}", name)))
    waiting.put(received(6, (MODIFIED, "good/x", "x")))
    assert handed_out(waiting) == [6]
    assert waiting.next_at == pytest.approx(LEAST_BYTES / SHARE_BYTES_PER_SECOND)
    assert handed_out(waiting, waiting.next_at) == [4]
    assert handed_out(waiting, 1.0) == [5]
    assert waiting.next_at == math.inf


def test_what_is_superseded_counts_neither_as_waiting_nor_for_a_share() -> None:
    waiting: WaitingFrames[Pod] = WaitingFrames()
    for version in range(1000):
        waiting.put(received(version, (MODIFIED, "n/a", "1"), 1 << 20))
        assert not waiting.is_full
    assert handed_out(waiting) == [999]
    assert waiting.next_at == math.inf
    waiting.put(received(1000, (MODIFIED, "n/a", "1"), 1 << 20))
    assert handed_out(waiting) == [1000]


ATTACKS: dict[str, list[FrameType]] = {
    "changed": [MODIFIED],
    "made and deleted": [ADDED, DELETED],
    "made, changed and deleted": [ADDED, MODIFIED, DELETED],
}


@pytest.mark.parametrize("name", ATTACKS)
async def test_of_objects_of_a_megabyte_fifty_times_a_second_a_share_is_decoded(
    name: str, autojump_clock: MockClock
) -> None:
    seconds, decoded_bytes = 60, 0
    types = cycle(ATTACKS[name])

    async def frames() -> AsyncIterator[ReceivedFrame[Pod]]:
        for version in range(50 * seconds):
            yield received(version, (next(types), "hostile/a", "1"), 1 << 20)
            await trio.sleep(1 / 50)

    async def decode(frame: ReceivedFrame[Pod]) -> None:
        nonlocal decoded_bytes
        decoded_bytes += frame.size_bytes
        await trio.sleep(0.02)

    await ReadAhead(frames(), lambda _head: True, decode).run()
    last = 1 << 20  # which may go beyond the share
    share = SHARE_BYTES_AT_ONCE + seconds * SHARE_BYTES_PER_SECOND + last
    # Removals wait for nobody, but each is of an object that somebody has paid for.
    assert decoded_bytes <= len(ATTACKS[name]) * share
    assert decoded_bytes < 50 * seconds << 19, "half of what has come, and more"


def test_what_is_full_is_emptied_whatever_anybody_has_had() -> None:
    waiting: WaitingFrames[Pod] = WaitingFrames()
    waiting.put(received(0, (MODIFIED, "n/a", "0"), SHARE_BYTES_AT_ONCE * 2))
    assert handed_out(waiting) == [0]
    for version in range(1, 5):
        waiting.put(received(version, (MODIFIED, f"n/a{version}", "1"), MOST_BYTES // 2))
    assert handed_out(waiting) == [1, 2, 3]
    frame = waiting.take(0.0, unshared=True)
    assert frame is not None
    assert frame.head.resource_version == "4"


def test_a_share_fills_up_again_and_is_forgotten_then() -> None:
    shares = Shares()
    shares.take("n", SHARE_BYTES_AT_ONCE, 0.0)
    assert shares.free_at("n") == 0.0
    shares.take("n", SHARE_BYTES_PER_SECOND, 0.0)
    assert shares.free_at("n") == 1.0
    full_at = SHARE_BYTES_AT_ONCE / SHARE_BYTES_PER_SECOND + 1
    shares.take("m", 1, full_at)
    assert shares.free_at("n") == -math.inf


async def test_one_namespace_that_changes_a_large_object_all_the_time_delays_nobody(
    autojump_clock: MockClock,
) -> None:
    """Few versions of the large object are decoded and told."""
    server = ApiServer()
    told: list[tuple[str, str, float]] = []

    async def take(event: WatchEvent[ConfigMap]) -> None:
        if isinstance(event, ObjectChanged):
            changed = event.object
            told.append((changed.metadata.name, changed.data["n"], trio.current_time()))

    def write(name: str, namespace: str, number: int, size: int) -> None:
        metadata = {"name": name, "namespace": namespace, "uid": name}
        data = {"n": str(number), "filler": "x" * size}
        server.put_raw(CONFIG_MAPS, {"metadata": metadata, "data": data})

    written: list[tuple[str, str, float]] = []
    async with reflection(server, take):
        for number in range(1000):
            with making_test_data():
                write("large", "greedy", number, 1 << 20)
            if number % 50 == 0:
                write("small", "good", number, 1)
                written.append(("small", str(number), trio.current_time()))
            await trio.sleep(0.02)
        await trio.sleep(5)
    assert [each for each in told if each[0] == "small"] == written
    large = [int(number) for name, number, _ in told if name == "large"]
    assert large == sorted(large)
    assert large[-1] == 999
    assert len(large) <= 16 + 2 * 20 + 2
