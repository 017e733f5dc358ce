"""What holds for every machine, and for the pod and its containers together, whatever happens."""

import ast
import sys
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

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
    ContainerEvent,
    ContainerRole,
    ContainerStage,
    ExitEvidence,
    RestartPolicy,
    RestartRule,
    RestartTerms,
    crash_loop_policy,
    restarts_after,
    should_restart,
)
from state_machines.image import IMAGE, ImageEvidence, PullPolicy
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
    may_have_running_containers,
    may_start_containers,
)
from state_machines.pressure import PRESSURE, PressureEvidence

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
    "container": st.builds(ExitEvidence, exit_code=st.integers(0, 255), terms=restart_terms),
    "image": st.builds(
        ImageEvidence,
        policy=st.sampled_from(PullPolicy),
        present=st.booleans(),
        allowed=st.booleans(),
    ),
    "pressure": st.builds(
        PressureEvidence,
        kept_seconds=st.floats(0, 10),
        transition_seconds=st.floats(0, 10),
    ),
    "pleg": st.one_of(
        st.builds(RuntimeTraits, streams_events=st.booleans(), shares_channel=st.booleans()),
        st.builds(Proof, announced=st.integers(0, 2000), misses=st.integers(0, 20)),
    ),
}
MACHINES: list[AnyMachine] = [POD, CONTAINER, IMAGE, PLEG, PRESSURE]
every_machine = pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)


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


@every_machine
@given(data=st.data())
def test_no_sequence_of_events_reaches_an_undeclared_state(
    machine: AnyMachine, data: st.DataObject
) -> None:
    start = data.draw(st.sampled_from(machine.initial))
    for _, state in walk(machine, start, data.draw(steps_of(machine))):
        assert state is None or state in machine.states


@every_machine
@given(data=st.data())
def test_a_refused_event_says_what_would_have_been_legal(
    machine: AnyMachine, data: st.DataObject
) -> None:
    state = data.draw(st.sampled_from(machine.states))
    event = data.draw(st.sampled_from(machine.events))
    evidence = data.draw(st.none() | EVIDENCE[machine.name])
    if machine.allows(state, event, evidence):
        assert machine.step(state, event, evidence) in machine.states
        return
    with pytest.raises(IllegalTransition) as caught:
        machine.step(state, event, evidence)
    assert caught.value.legal == machine.legal_events(state)
    assert (event in caught.value.legal) == bool(caught.value.refused_by)


@every_machine
def test_terminal_states_accept_nothing(machine: AnyMachine) -> None:
    for state in machine.terminal:
        assert not any(machine.allows(state, event) for event in machine.events)
        with pytest.raises(IllegalTransition, match="the state is terminal"):
            machine.step(state, machine.events[0])


@every_machine
def test_every_state_is_reached_and_every_state_but_the_terminal_ones_is_left(
    machine: AnyMachine,
) -> None:
    reached = set(machine.initial) | {row.target for row in machine.rows if not row.stays}
    left = {row.source for row in machine.rows if not row.stays}
    assert reached == set(machine.states)
    assert left == set(machine.states) - machine.terminal


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


class PodWithContainers(RuleBasedStateMachine):
    """A pod task that keeps to the rules, over a runtime in which calls fail and containers exit.

    The task starts containers only where `may_start_containers` says so, and believes that the
    pod has stopped only on evidence. Any listing may be used, however old it is.
    """

    @initialize(configured=st.booleans(), already_running=st.booleans())
    def begin(self, configured: bool, already_running: bool) -> None:
        self.clock = 0.0
        self.last_call_ended_at = 0.0
        self.pod = PodState.SYNC_POD if configured else PodState.TERMINATING
        self.really_running = {"web"} if already_running else set()
        self.listings = [(self.clock, tuple(self.really_running))]
        self.was_terminated = False

    def tick(self) -> float:
        self.clock += 1.0
        return self.clock

    @rule(name=st.sampled_from(["web", "log"]))
    @precondition(lambda self: may_start_containers(self.pod))
    def start(self, name: str) -> None:
        self.really_running.add(name)
        self.last_call_ended_at = self.tick()

    @rule(name=st.sampled_from(["web", "log"]))
    def exit_by_itself(self, name: str) -> None:
        self.really_running.discard(name)

    @rule(event=st.sampled_from(sorted(ENDINGS - {PodEvent.REJECTED})))
    @precondition(lambda self: self.pod is not PodState.FINISHED)
    def end(self, event: PodEvent) -> None:
        self.pod = POD.step(self.pod, event)

    @rule(works=st.booleans())
    @precondition(lambda self: self.pod is PodState.TERMINATING)
    def stop(self, works: bool) -> None:
        if works:
            self.really_running.clear()
        self.last_call_ended_at = self.tick()

    @rule()
    def take_a_listing(self) -> None:
        self.listings.append((self.tick(), tuple(sorted(self.really_running))))

    @rule(data=st.data())
    @precondition(lambda self: self.pod is PodState.TERMINATING)
    def believe_a_listing_if_it_is_good_enough(self, data: st.DataObject) -> None:
        listed_at, running = data.draw(st.sampled_from(self.listings))
        evidence = StopEvidence(
            listed_at=listed_at, last_call_ended_at=self.last_call_ended_at, running=running
        )
        if POD.allows(self.pod, PodEvent.CONTAINERS_STOPPED, evidence):
            self.pod = POD.step(self.pod, PodEvent.CONTAINERS_STOPPED, evidence)
            self.was_terminated = True

    @rule()
    @precondition(lambda self: self.pod is PodState.TERMINATED)
    def release(self) -> None:
        self.pod = POD.step(self.pod, PodEvent.RELEASED)

    @rule(event=st.sampled_from((PodEvent.KEPT, PodEvent.CLEANED)))
    @precondition(lambda self: self.pod is PodState.RELEASED)
    def finish(self, event: PodEvent) -> None:
        self.pod = POD.step(self.pod, event)

    @invariant()
    def a_terminated_pod_never_runs_a_container_again(self) -> None:
        if self.was_terminated:
            assert not self.really_running
            assert not may_have_running_containers(self.pod)


TestPodWithContainers = PodWithContainers.TestCase


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
    evidence = ExitEvidence(exit_code=exit_code, terms=terms)
    by_table = CONTAINER.allows(ContainerStage.EXITED, ContainerEvent.RESTARTED, evidence)
    assert by_table == restarts_after(terms, exit_code)


@given(terms=restart_terms, exit_code=st.integers(0, 255))
def test_a_container_that_runs_is_never_made_a_second_time(
    terms: RestartTerms, exit_code: int
) -> None:
    assert not should_restart(ContainerStage.RUNNING, terms, exit_code)


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
