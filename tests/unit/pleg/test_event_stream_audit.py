"""When events count as proof, and when as missed."""

from attrs import evolve

from trio_kubelet.pleg.event_stream_audit import PATIENCE_SECONDS, EventStreamAudit
from trio_kubelet.runtime.observed import ObservedContainer, ObservedPod, ObservedState

RUNNING, EXITED = ObservedState.RUNNING, ObservedState.EXITED
OPENED_NS = 1000


def pod(*containers: tuple[str, ObservedState, int]) -> ObservedPod:
    return ObservedPod(
        uid="u",
        name="p",
        namespace="ns",
        observed_at=0.0,
        containers=tuple(
            ObservedContainer(
                id=identifier,
                name=identifier,
                sandbox_id="s",
                state=state,
                started_at=at,
                finished_at=at,
            )
            for identifier, state, at in containers
        ),
    )


NOTHING = pod()


def test_an_event_before_the_look_is_proof() -> None:
    audit = EventStreamAudit(OPENED_NS)
    audit.heard(("c", RUNNING), 1.0)
    audit.saw(NOTHING, pod(("c", RUNNING, 2000)), 1.1)
    assert audit.proof.announced == 1
    assert not audit.missed(100.0)


def test_an_event_shortly_after_the_look_is_proof() -> None:
    audit = EventStreamAudit(OPENED_NS)
    audit.saw(NOTHING, pod(("c", RUNNING, 2000)), 1.0)
    assert not audit.missed(1.0 + PATIENCE_SECONDS)
    audit.heard(("c", RUNNING), 1.0 + PATIENCE_SECONDS)
    assert audit.proof.announced == 1


def test_a_change_that_nobody_announces_is_missed_once_and_ends_the_row() -> None:
    audit = EventStreamAudit(OPENED_NS)
    audit.heard(("a", RUNNING), 1.0)
    audit.saw(NOTHING, pod(("a", RUNNING, 2000), ("b", RUNNING, 2000)), 1.0)
    late = 1.1 + PATIENCE_SECONDS
    assert audit.missed(late) == 1
    assert audit.missed(late) == 0
    assert (audit.proof.announced, audit.proof.misses) == (0, 1)
    audit.heard(("b", RUNNING), late)
    assert audit.proof.announced == 0


def test_what_happened_before_the_stream_delivered_needs_no_event() -> None:
    audit = EventStreamAudit(OPENED_NS)
    audit.saw(NOTHING, pod(("c", RUNNING, 900), ("d", EXITED, 900)), 1.0)
    assert audit.missed(100.0) == 0


def test_what_was_known_before_needs_no_event() -> None:
    audit = EventStreamAudit(OPENED_NS)
    same = pod(("c", RUNNING, 2000))
    audit.saw(same, same, 1.0)
    assert audit.missed(100.0) == 0


def test_start_and_end_are_two_changes() -> None:
    audit = EventStreamAudit(OPENED_NS)
    for state in (RUNNING, EXITED):
        audit.heard(("c", state), 1.0)
        audit.saw(NOTHING, pod(("c", state, 2000)), 1.0)
    assert audit.proof.announced == 2


def test_misses_of_earlier_streams_count() -> None:
    assert EventStreamAudit(OPENED_NS, misses=3).proof.misses == 3


def test_a_container_that_could_not_be_started_needs_no_event() -> None:
    audit = EventStreamAudit(OPENED_NS)
    failed = ObservedContainer(
        id="c", name="c", sandbox_id="s", state=EXITED, exit_code=128, finished_at=2000
    )
    audit.saw(NOTHING, evolve(NOTHING, containers=(failed,)), 1.0)
    assert audit.missed(100.0) == 0
