"""The cache of what the runtime shows: how fresh an answer is, and who waits for a fresher one."""

import math
from contextlib import ExitStack

import trio
import trio.testing
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.runtime.cache import RuntimeCache
from trio_kubelet.runtime.observed import (
    ObservedContainer,
    ObservedPod,
    ObservedSandbox,
    ObservedState,
)


def observed(at: float, *, ips: tuple[str, ...] = (), running: bool = True) -> ObservedPod:
    return ObservedPod(
        uid="u",
        name="p",
        namespace="ns",
        observed_at=at,
        ips=ips,
        sandboxes=(
            ObservedSandbox(
                id="s", name="p", namespace="ns", uid="u", attempt=0, ready=True, created_at=1
            ),
        ),
        containers=(
            ObservedContainer(
                id="c",
                name="c",
                sandbox_id="s",
                state=ObservedState.RUNNING if running else ObservedState.EXITED,
            ),
        ),
    )


changes = st.tuples(st.sampled_from(["c", "d"]), st.sampled_from(["running", "exited"]))
some_states = st.frozensets(changes, min_size=1, max_size=2)
states = st.just(frozenset[tuple[str, str]]()) | some_states


def showing(uid: str, at: float, shown: frozenset[tuple[str, str]]) -> ObservedPod:
    """A pod of which the runtime shows containers in some states."""
    containers = tuple(
        ObservedContainer(id=name, name=name, sandbox_id="s", state=ObservedState(state))
        for name, state in sorted(shown)
    )
    return ObservedPod(uid=uid, name="p", namespace="ns", observed_at=at, containers=containers)


def test_an_older_observation_does_not_replace_a_newer_one() -> None:
    cache = RuntimeCache()
    newer = cache.put(observed(2.0))
    assert cache.put(observed(1.0, running=False)) is newer
    assert cache.get("u") is newer


def test_of_looks_that_overlap_none_brings_back_what_was_seen_at_its_end() -> None:
    cache = RuntimeCache()
    cache.put(evolve(observed(1.0, running=False), answered_at=3.0))
    assert cache.put(observed(2.0)).containers[0].state is ObservedState.EXITED
    later = cache.put(observed(3.5))
    assert later.containers[0].state is ObservedState.RUNNING, "the runtime has the last word"


def test_the_addresses_of_a_pod_outlive_its_sandbox() -> None:
    cache = RuntimeCache()
    cache.put(observed(1.0, ips=("10.0.0.2",)))
    assert cache.put(observed(2.0)).ips == ("10.0.0.2",)


def test_a_listing_makes_pods_known_that_it_does_not_show() -> None:
    cache = RuntimeCache()
    assert cache.get("u").observed_at == -math.inf
    cache.listing_completed(5.0)
    assert cache.get("u").observed_at == 5.0
    assert not cache.get("u").is_running


async def test_before_the_first_listing_nothing_is_new_enough(
    autojump_clock: trio.testing.MockClock,
) -> None:
    cache = RuntimeCache()
    cache.put(observed(1.0))
    with trio.move_on_after(10) as waiting:
        await cache.get_newer_than("u", 0.0)
    assert waiting.cancelled_caught


async def test_who_asks_for_newer_is_answered_by_the_next_observation(
    autojump_clock: trio.testing.MockClock,
) -> None:
    cache = RuntimeCache()
    cache.listing_completed(1.0)
    async with trio.open_nursery() as nursery:
        answers: list[ObservedPod] = []

        async def ask() -> None:
            answers.append(await cache.get_newer_than("u", 2.0))

        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        cache.put(observed(1.5))
        await trio.testing.wait_all_tasks_blocked()
        assert not answers
        cache.put(observed(2.0))
    assert answers[0].observed_at == 2.0


async def test_who_asks_for_newer_is_answered_by_the_next_listing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    cache = RuntimeCache()
    cache.listing_completed(1.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cache.get_newer_than, "u", 2.0)
        await trio.testing.wait_all_tasks_blocked()
        cache.listing_completed(3.0)


def test_a_pod_that_looks_as_listed_needs_no_look() -> None:
    cache = RuntimeCache()
    cache.put(observed(1.0))
    assert not cache.unlike({"u": frozenset({("s", "ready"), ("c", "running")})}, 2.0)
    assert cache.unlike({"u": frozenset({("s", "ready"), ("c", "exited")})}, 2.0) == {"u"}
    assert cache.unlike({}, 2.0) == {"u"}
    assert cache.unlike({"v": frozenset({("s", "ready")})}, 2.0) == {"u", "v"}


def test_a_listing_that_is_older_than_the_observation_says_nothing() -> None:
    cache = RuntimeCache()
    cache.put(observed(3.0))
    assert not cache.unlike({}, 2.0)


def test_observers_see_what_a_forgotten_pod_had_go() -> None:
    cache, seen = RuntimeCache(), list[tuple[int, int]]()
    cache.put(observed(1.0))
    cache.on_observation.add(
        lambda before, after: seen.append((len(before.containers), len(after.containers)))
    )
    cache.forget("u")
    cache.forget("u")
    assert seen == [(1, 0)]


def test_what_is_put_after_all_was_as_listed_is_compared_again() -> None:
    cache = RuntimeCache()
    listed = {"u": frozenset({("s", "ready"), ("c", "running")})}
    cache.put(observed(1.0))
    assert not cache.unlike(listed, 2.0)
    cache.put(observed(2.5, running=False))
    assert cache.unlike(listed, 3.0) == {"u"}
    cache.forget("u")
    assert cache.unlike(listed, 3.0) == {"u"}


@given(
    st.dictionaries(st.sampled_from("abc"), st.tuples(st.integers(0, 3), states)),
    st.dictionaries(st.sampled_from("abc"), some_states),
    st.sets(st.sampled_from("abc")),
)
def test_a_pod_needs_a_look_unless_it_is_as_listed_or_newer_or_attended(
    known: dict[str, tuple[int, frozenset[tuple[str, str]]]],
    listed: dict[str, frozenset[tuple[str, str]]],
    attended: set[str],
) -> None:
    cache = RuntimeCache()
    for uid, (at, shown) in known.items():
        cache.put(showing(uid, float(at), shown))
    with ExitStack() as stack:
        for uid in attended:
            stack.enter_context(cache.suspend_inspection(uid))
        needs_a_look = {
            uid
            for uid in "abc"
            if uid not in attended
            and known.get(uid, (0, frozenset()))[0] < 2
            and known.get(uid, (0, frozenset()))[1] != listed.get(uid, frozenset())
        }
        assert cache.unlike(listed, 2.0) == needs_a_look


async def test_a_pod_is_unattended_when_its_task_is_done(
    autojump_clock: trio.testing.MockClock,
) -> None:
    cache = RuntimeCache()
    seen: list[bool] = []

    async def wait() -> None:
        await cache.wait_inspection_resumed("u")
        seen.append(cache.is_inspection_suspended("u"))

    async with trio.open_nursery() as nursery:
        with cache.suspend_inspection("u"):
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            assert not seen
            assert cache.is_inspection_suspended("u")
    assert seen == [False]


def test_a_pod_that_was_looked_for_in_vain_is_forgotten_with_the_next_listing() -> None:
    cache = RuntimeCache()
    nothing = ObservedPod(uid="u", name="", namespace="", observed_at=1.0)
    cache.put(nothing)
    assert cache.get("u") is nothing
    cache.listing_completed(2.0)
    assert cache.get("u") is not nothing
    assert cache.get("u").observed_at == 2.0
