"""What holds of the lifecycles' rules, whatever happens in which order."""

import ast
import sys
from enum import StrEnum
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import state_machines
from state_machines.backoff import (
    NANOSECONDS,
    Backoff,
    BackoffPolicy,
    next_backoff,
    remaining_seconds,
)
from state_machines.container import (
    CONTAINER,
    LIVING,
    ContainerEvent,
    ContainerRole,
    ContainerStage,
    RestartEvidence,
    RestartPolicy,
    RestartRule,
    RestartTerms,
    crash_loop_policy,
    restarts_after,
)
from state_machines.machine import IllegalTransition, Machine
from state_machines.pleg import PLEG, PlegState, Proof, RuntimeTraits, relist_period_seconds
from state_machines.pod import (
    ENDINGS,
    MINIMUM_GRACE_SECONDS,
    POD,
    PodEvent,
    PodState,
    StopEvidence,
    effective_grace_seconds,
)

AnyMachine = Machine[Any, Any, Any]

rules = st.builds(
    RestartRule,
    action=st.sampled_from(["Restart", "RestartAllContainers", "Reboot"]),
    operator=st.sampled_from(["In", "NotIn", ""]),
    exit_codes=st.frozensets(st.integers(0, 255), max_size=4),
)
restart_terms = st.builds(
    RestartTerms,
    pod_policy=st.sampled_from(["Always", "OnFailure", "Never", ""]),
    role=st.sampled_from(ContainerRole),
    container_policy=st.sampled_from(["Always", "OnFailure", "Never", ""]),
    rules=st.lists(rules, max_size=3).map(tuple),
)
EVIDENCE: dict[str, st.SearchStrategy[object]] = {
    "pod": st.builds(
        StopEvidence,
        listed_at=st.floats(0, 10),
        last_call_ended_at=st.floats(0, 10),
        running=st.sampled_from([(), ("web",)]),
    ),
    "container": st.builds(RestartEvidence, exit_code=st.integers(0, 255), terms=restart_terms),
    "pleg": st.one_of(
        st.builds(RuntimeTraits, streams_events=st.booleans(), shares_channel=st.booleans()),
        st.builds(Proof, announced=st.integers(0, 2000), misses=st.integers(0, 20)),
    ),
}


def walk(
    machine: AnyMachine, state: StrEnum, steps: list[tuple[StrEnum, object]]
) -> list[tuple[StrEnum, StrEnum | None]]:
    """Return each event with the state that it led to, None if it was refused."""
    path: list[tuple[StrEnum, StrEnum | None]] = []
    for event, evidence in steps:
        try:
            state = machine.step(state, event, evidence)
        except IllegalTransition:
            path.append((event, None))
        else:
            path.append((event, state))
    return path


def steps_of(machine: AnyMachine) -> st.SearchStrategy[list[tuple[StrEnum, object]]]:
    evidence = st.none() | EVIDENCE[machine.name]
    return st.lists(st.tuples(st.sampled_from(machine.events), evidence), max_size=40)


@given(steps=steps_of(POD), start=st.sampled_from(POD.initial))
def test_a_pod_only_goes_forward(steps: list[tuple[StrEnum, object]], start: PodState) -> None:
    order = list(PodState)
    path = [start, *(state for _, state in walk(POD, start, steps) if state is not None)]
    assert [order.index(PodState(s)) for s in path] == sorted(
        order.index(PodState(s)) for s in path
    )


@given(endings=st.lists(st.sampled_from(sorted(ENDINGS - {PodEvent.REJECTED})), min_size=1))
def test_endings_may_come_in_any_order_and_number(endings: list[PodEvent]) -> None:
    state = PodState.SYNC_POD
    for event in endings:
        state = POD.step(state, event)
    assert state is PodState.TERMINATING


@given(
    current=st.none() | st.integers(1, 10_000),
    requests=st.lists(st.lists(st.none() | st.integers(-5, 10_000), max_size=3), max_size=8),
    default=st.integers(0, 10_000),
)
def test_a_grace_period_never_grows_and_is_at_least_a_second(
    current: int | None, requests: list[list[int | None]], default: int
) -> None:
    for requested in requests:
        grace = effective_grace_seconds(current, *requested, default=default)
        assert grace >= MINIMUM_GRACE_SECONDS
        assert current is None or grace <= current
        current = grace


policies = st.builds(
    lambda cap, reduced: crash_loop_policy(cap, reduced_decay=reduced),
    st.none() | st.floats(1, 300),
    st.booleans(),
)


@given(policy=policies, runs=st.lists(st.floats(0, 599), min_size=1, max_size=15))
def test_the_back_off_of_a_crash_loop_grows_up_to_its_cap(
    policy: BackoffPolicy, runs: list[float]
) -> None:
    backoff: Backoff | None = None
    now_ns = 0
    delays = []
    for ran_seconds in runs:
        exited_at_ns = now_ns + int(ran_seconds * NANOSECONDS)
        wait = remaining_seconds(backoff, policy, failed_at_ns=exited_at_ns, now_ns=exited_at_ns)
        now_ns = exited_at_ns + int(wait * NANOSECONDS)
        backoff = next_backoff(backoff, policy, failed_at_ns=exited_at_ns, now_ns=now_ns)
        delays.append(backoff.delay_seconds)
    assert delays == sorted(delays)
    assert delays[0] == policy.initial_seconds
    assert max(delays) <= policy.cap_seconds


@given(
    delay=st.floats(0.1, 300),
    decided_at=st.integers(0, 10**19),
    failed_at=st.integers(0, 10**19),
    now=st.integers(0, 10**19),
)
def test_no_jump_of_the_clock_makes_a_wait_longer_than_the_delay(
    delay: float, decided_at: int, failed_at: int, now: int
) -> None:
    backoff = Backoff(delay_seconds=delay, decided_at_ns=decided_at)
    remaining = remaining_seconds(backoff, BackoffPolicy(), failed_at_ns=failed_at, now_ns=now)
    assert 0 <= remaining <= delay


@given(terms=restart_terms, exit_code=st.integers(0, 255))
def test_the_table_and_the_rule_agree_on_who_is_restarted(
    terms: RestartTerms, exit_code: int
) -> None:
    evidence = RestartEvidence(exit_code=exit_code, terms=terms)
    by_table = CONTAINER.allows(ContainerStage.EXITED, ContainerEvent.RESTARTED, evidence)
    assert by_table == restarts_after(terms, exit_code)


@given(steps=steps_of(CONTAINER))
def test_a_container_that_may_run_is_never_made_a_second_time(
    steps: list[tuple[StrEnum, object]],
) -> None:
    state: StrEnum = ContainerStage.WAITING
    for event, after in walk(CONTAINER, state, steps):
        if state in LIVING and after is ContainerStage.WAITING:
            assert event in (ContainerEvent.EXITED, ContainerEvent.GONE)
        state = after or state


@given(rules=st.lists(rules, max_size=3).map(tuple), exit_code=st.integers(0, 255))
def test_rules_can_add_restarts_but_never_take_one_away(
    rules: tuple[RestartRule, ...], exit_code: int
) -> None:
    for policy in RestartPolicy:
        without = RestartTerms(container_policy=policy)
        with_rules = RestartTerms(container_policy=policy, rules=rules)
        assert restarts_after(with_rules, exit_code) >= restarts_after(without, exit_code)


@given(steps=steps_of(PLEG))
def test_the_relist_is_rare_only_while_a_proven_stream_is_open(
    steps: list[tuple[StrEnum, object]],
) -> None:
    trusted = False
    for event, state in walk(PLEG, PlegState.GENERIC, steps):
        if state is None:
            continue
        if event == "Proven":
            trusted = True
        elif event in ("StreamFailed", "ChangeMissed"):
            trusted = False
        assert (relist_period_seconds(PlegState(state)) > 1) is trusted


def test_the_tables_depend_on_nothing() -> None:
    impure = {"asyncio", "datetime", "os", "random", "socket", "threading", "time", "trio"}
    allowed = (set(sys.stdlib_module_names) - impure) | {"state_machines"}
    for path in Path(state_machines.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            assert {name.split(".")[0] for name in names} <= allowed, path.name
