"""Which events are written, counted up, combined and left out."""

from collections.abc import Callable

import attrs
from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.k8s import Event, ObjectMeta, ObjectReference
from trio_kubelet.telemetry.correlation import COMBINED, Correlator, EventDecision

SECOND = 1_000_000_000


def event(message: str = "no", *, name: str = "e", reason: str = "Failed", pod: str = "u") -> Event:
    return Event(
        metadata=ObjectMeta(name=name, namespace="shop"),
        involved_object=ObjectReference(kind="Pod", namespace="shop", name="web", uid=pod),
        reason=reason,
        message=message,
        type="Warning",
        count=1,
    )


def told(correlator: Correlator, said: Event, seconds: float = 0.0) -> EventDecision:
    correlated = correlator.correlate(said, round(seconds * SECOND))
    assert correlated is not None
    return correlated


def test_what_is_said_again_counts_up_the_first_event() -> None:
    correlator = Correlator()
    first = told(correlator, event(name="first"))
    again = [told(correlator, event(name=f"later-{n}"), n) for n in range(1, 4)]
    assert not first.repeats
    assert [(each.repeats, each.event.count) for each in again] == [(True, 2), (True, 3), (True, 4)]
    assert {each.event.metadata.name for each in again} == {"first"}


def test_another_place_reason_or_object_is_another_event() -> None:
    elsewhere: list[Callable[[Event], Event]] = [
        lambda e: attrs.evolve(
            e, involved_object=attrs.evolve(e.involved_object, field_path="spec.containers{c}")
        ),
        lambda e: attrs.evolve(e, reason="BackOff"),
        lambda e: attrs.evolve(e, involved_object=attrs.evolve(e.involved_object, uid="v")),
        lambda e: attrs.evolve(e, message="other"),
    ]
    for change in elsewhere:
        correlator = Correlator()
        told(correlator, event())
        assert not told(correlator, change(event())).repeats


def test_the_tenth_message_of_a_reason_begins_an_event_that_stands_for_all_more() -> None:
    correlator = Correlator()
    said = [told(correlator, event(f"try {n}", name=f"e{n}")) for n in range(12)]
    assert not any(each.event.message.startswith(COMBINED) for each in said[:9])
    combined = said[9:]
    assert [each.event.message for each in combined] == [f"{COMBINED}try {n}" for n in range(9, 12)]
    assert [each.event.count for each in combined] == [1, 2, 3]
    assert {each.event.metadata.name for each in combined} == {"e9"}


def test_after_ten_quiet_minutes_messages_stand_for_themselves_again() -> None:
    correlator = Correlator()
    for n in range(12):
        told(correlator, event(f"try {n}"))
    assert told(correlator, event("try 99"), 601).event.message == "try 99"


def test_an_object_that_never_stops_talking_is_heard_once_in_five_minutes() -> None:
    correlator = Correlator()
    heard = [correlator.correlate(event(), 0) is not None for _ in range(40)]
    assert heard == [True] * 25 + [False] * 15
    assert correlator.correlate(event(), 299 * SECOND) is None
    assert correlator.correlate(event(pod="quiet"), 299 * SECOND) is not None
    late = told(correlator, event(), 600)
    assert late.event.count == 42, "what was not written is counted all the same"


def test_what_pods_cause_on_the_node_takes_nothing_of_what_the_node_may_say() -> None:
    correlator = Correlator()
    node = ObjectReference(kind="Node", name="n1", uid="n1")

    def heard(reason: str, *, caused_by_pod: bool) -> bool:
        said = attrs.evolve(event(reason=reason), involved_object=node)
        return correlator.correlate(said, 0, caused_by_pod=caused_by_pod) is not None

    caused = [heard("MissingClusterDNS", caused_by_pod=True) for _ in range(40)]
    assert caused == [True] * 25 + [False] * 15
    own = [heard("EvictionThresholdMet", caused_by_pod=False) for _ in range(40)]
    assert own == [True] * 25 + [False] * 15


def test_an_event_that_the_server_lost_is_written_anew() -> None:
    correlator = Correlator()
    correlator.forget(told(correlator, event()).key)
    assert not told(correlator, event()).repeats


@given(
    st.lists(
        st.tuples(st.sampled_from("abcdefghijklmnop"), st.sampled_from("uv"), st.integers(0, 400)),
        max_size=80,
    )
)
def test_a_count_only_grows_and_a_repeat_is_always_of_an_event_that_was_made(
    said: list[tuple[str, str, int]],
) -> None:
    correlator, counts, now = Correlator(), dict[str, int](), 0
    for number, (message, pod, wait) in enumerate(said):
        now += wait
        correlated = correlator.correlate(event(message, name=f"e{number}", pod=pod), now * SECOND)
        if correlated is None:
            continue
        name, count = correlated.event.metadata.name, correlated.event.count or 0
        assert correlated.repeats == (count > 1)
        assert count > counts.get(name, 0)
        counts[name] = count
