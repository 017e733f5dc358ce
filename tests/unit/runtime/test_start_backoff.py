"""Which containers of a plan have to wait for their back-off, and until when."""

import pytest
from attrs import evolve

from state_machines.backoff import Backoff
from tests.unit.runtime.planned_pods import (
    GIVEN,
    NOW_NS,
    SECOND_NS,
    exited,
    make_pod,
    observe,
    plan_of,
    planned,
    sandbox,
    seen,
    summary,
    table,
)


@pytest.mark.parametrize(("ran_seconds", "expected"), [(9.9, "wait a"), (10.0, "start a")])
def test_a_container_that_fails_its_probe_within_its_back_off_waits(
    ran_seconds: float, expected: str
) -> None:
    pod = make_pod("a")
    before = evolve(exited("a", 137, ended_ago=ran_seconds), id="a-before")
    containers = table(pod, observed := observe(sandbox(), seen("a"), before))
    given = evolve(GIVEN, failed_probes={"a-s0": "liveness"}, containers=containers.records)
    containers.decide(pod, plan_of(pod, observed, given).decisions)
    observed = observe(sandbox(), exited("a", 137), before)
    containers.observe(pod, observed)
    backoff = Backoff(delay_seconds=10, decided_at_ns=NOW_NS - 60 * SECOND_NS)
    records = {"a": evolve(containers["a"], backoff=backoff)}
    plan = plan_of(pod, observed, evolve(GIVEN, containers=records))
    assert summary(plan) == expected


@pytest.mark.parametrize(
    ("ended_ago", "expected"), [(0.0, "wait a"), (9.9, "wait a"), (10.0, "start a")]
)
def test_a_crashed_container_waits_for_its_back_off(ended_ago: float, expected: str) -> None:
    pod = make_pod("a", "b")
    observed = observe(sandbox(), exited("a", 1, ended_ago=ended_ago), seen("b"))
    backoff = Backoff(delay_seconds=10, decided_at_ns=NOW_NS - 60 * SECOND_NS)
    assert summary(planned(pod, observed, backoffs={"a": backoff})) == expected


def test_a_crashed_container_waits_whenever_the_one_before_it_ended() -> None:
    pod = make_pod("a", "b")
    before = evolve(exited("a", 1, ended_ago=60), id="a-before")
    observed = observe(sandbox(), exited("a", 1), before, seen("b"))
    containers = table(pod, observed)
    backoff = Backoff(delay_seconds=10, decided_at_ns=NOW_NS - 60 * SECOND_NS)
    for _ in range(2):
        records = {**containers.records, "a": evolve(containers["a"], backoff=backoff)}
        plan = plan_of(pod, observed, evolve(GIVEN, containers=records))
        assert summary(plan) == "wait a"
        containers.decide(pod, plan.decisions)


def test_a_postponed_container_says_when_and_in_the_words_of_the_go_kubelet() -> None:
    pod = make_pod("a", "b")
    observed = observe(sandbox(), exited("a", 1, ended_ago=3), seen("b"))
    backoff = Backoff(delay_seconds=80, decided_at_ns=NOW_NS - 60 * SECOND_NS)
    plan = planned(pod, observed, backoffs={"a": backoff})
    (postponed,) = plan.postponed
    assert postponed.until_ns == NOW_NS + 77 * SECOND_NS
    assert postponed.message == "back-off 1m20s restarting failed container=a pod=p_ns(u)"


def test_a_container_that_fails_its_probe_again_waits_for_its_back_off() -> None:
    pod = make_pod("a", "b")
    containers = table(pod, before := observe(sandbox(), seen("a"), seen("b")))
    given = evolve(GIVEN, containers=containers.records, failed_probes={"a-s0": "liveness"})
    containers.decide(pod, plan_of(pod, before, given).decisions)
    containers.observe(pod, after := observe(sandbox(), exited("a", 0, ended_ago=3), seen("b")))
    backoff = Backoff(delay_seconds=10, decided_at_ns=NOW_NS - 60 * SECOND_NS)
    records = {**containers.records, "a": evolve(containers["a"], backoff=backoff)}
    plan = plan_of(pod, after, evolve(GIVEN, containers=records))
    assert summary(plan) == "wait a"
