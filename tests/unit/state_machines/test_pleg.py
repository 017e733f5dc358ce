import pytest

from state_machines.machine import IllegalTransition
from state_machines.pleg import (
    PLEG,
    PlegEvent,
    PlegState,
    Proof,
    RuntimeTraits,
    changes_to_prove,
    health_threshold_seconds,
    relist_is_due,
    relist_period_seconds,
    runtime_traits,
    uses_events,
)

STREAMS = RuntimeTraits(streams_events=True)
SHARED = RuntimeTraits(streams_events=True, shares_channel=True)
SILENT = RuntimeTraits(streams_events=False)


def test_a_runtime_earns_the_rare_relist_by_proving_that_it_announces_changes() -> None:
    state = PLEG.step(PlegState.GENERIC, PlegEvent.RUNTIME_KNOWN, STREAMS)
    state = PLEG.step(state, PlegEvent.STREAM_OPENED, STREAMS)
    state = PLEG.step(state, PlegEvent.FIRST_EVENT)
    assert state is PlegState.PROVING
    assert relist_period_seconds(state) == 1
    state = PLEG.step(state, PlegEvent.PROVEN, Proof(announced=8))
    assert state is PlegState.EVENTED
    assert relist_period_seconds(state) == 300
    assert health_threshold_seconds(state) == 600


def test_seven_changes_are_not_a_proof() -> None:
    with pytest.raises(IllegalTransition, match="unless enough was announced"):
        PLEG.step(PlegState.PROVING, PlegEvent.PROVEN, Proof(announced=7))


def test_a_runtime_with_one_channel_for_all_is_never_trusted_alone() -> None:
    state = PLEG.step(PlegState.CONNECTING, PlegEvent.STREAM_OPENED, SHARED)
    assert state is PlegState.HINTED
    assert not PLEG.allows(state, PlegEvent.PROVEN, Proof(announced=10_000))
    assert relist_period_seconds(state) == 1
    assert uses_events(state)


def test_a_change_that_no_event_announced_ends_the_trust() -> None:
    assert PLEG.step(PlegState.EVENTED, PlegEvent.CHANGE_MISSED) is PlegState.PROVING


@pytest.mark.parametrize("state", [PlegState.PROVING, PlegState.EVENTED, PlegState.HINTED])
def test_a_stream_that_fails_leads_back_to_looking_each_second(state: PlegState) -> None:
    state = PLEG.step(state, PlegEvent.STREAM_FAILED)
    assert state is PlegState.CONNECTING
    assert relist_period_seconds(state) == 1
    assert not uses_events(state)


@pytest.mark.parametrize("state", [PlegState.GENERIC, PlegState.CONNECTING])
def test_a_runtime_without_events_is_looked_at_until_it_is_another_one(state: PlegState) -> None:
    assert PLEG.step(state, PlegEvent.RUNTIME_KNOWN, SILENT) is PlegState.GENERIC
    assert PLEG.step(state, PlegEvent.RUNTIME_KNOWN, STREAMS) is PlegState.CONNECTING


def test_every_miss_doubles_the_proof_up_to_a_limit() -> None:
    assert [changes_to_prove(n) for n in (0, 1, 2, 7, 8, 1000)] == [8, 16, 32, 1024, 1024, 1024]
    assert not PLEG.allows(PlegState.PROVING, PlegEvent.PROVEN, Proof(announced=15, misses=1))
    assert PLEG.allows(PlegState.PROVING, PlegEvent.PROVEN, Proof(announced=16, misses=1))


def test_a_relist_is_due_whenever_events_may_have_been_lost() -> None:
    due = {
        (str(row.source), str(row.event))
        for row in PLEG.rows
        if relist_is_due(row.source, row.event, row.target)
    }
    assert due == {
        ("Connecting", "StreamOpened"),
        ("Connecting", "StreamFailed"),
        ("Proving", "FirstEvent"),
        ("Proving", "StreamFailed"),
        ("Evented", "ChangeMissed"),
        ("Evented", "StreamFailed"),
        ("Hinted", "FirstEvent"),
        ("Hinted", "StreamFailed"),
    }


def test_a_relist_that_was_old_on_trust_has_as_long_as_any_when_the_trust_ends() -> None:
    assert health_threshold_seconds(PlegState.PROVING, 290) == 290 + 180
    assert health_threshold_seconds(PlegState.CONNECTING, 500) == 600


def test_only_the_evented_relist_may_be_older_than_three_minutes() -> None:
    slow = {state for state in PlegState if health_threshold_seconds(state) > 180}
    assert slow == {PlegState.EVENTED}
    assert all(health_threshold_seconds(s) >= 2 * relist_period_seconds(s) for s in PlegState)


@pytest.mark.parametrize(
    ("name", "version", "traits"),
    [
        ("containerd", "1.6.20~ds1", SILENT),
        ("containerd", "v1.6.33", RuntimeTraits(streams_events=False)),
        ("containerd", "9" * 5000 + ".1", SHARED),
        ("containerd", "2." + "9" * 5000, SHARED),
        ("containerd", "1.7.27", SHARED),
        ("containerd", "v2.0.0", STREAMS),
        ("containerd", "v2.1.9", STREAMS),
        ("containerd", "v10.0", STREAMS),
        ("containerd", "main", SHARED),
        ("cri-o", "1.33.0", STREAMS),
        ("hollow", "0.1.0", STREAMS),
    ],
)
def test_what_is_known_of_a_runtime_before_its_first_event(
    name: str, version: str, traits: RuntimeTraits
) -> None:
    known = runtime_traits(name, version)
    assert known.streams_events is traits.streams_events
    assert not known.streams_events or known.shares_channel is traits.shares_channel


def test_the_gate_switches_events_off() -> None:
    assert not runtime_traits("containerd", "v2.1.9", events_enabled=False).streams_events
