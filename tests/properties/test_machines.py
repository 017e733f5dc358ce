"""What holds of the lifecycles' rules, whatever happens in which order."""

import ast
import sys
from pathlib import Path

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
    ContainerStage,
    RestartPolicy,
    RestartRule,
    RestartTerms,
    crash_loop_policy,
    restarts_after,
)
from state_machines.pleg import PLEG, PlegEvent, PlegState, relist_period_seconds
from state_machines.pod import (
    MINIMUM_GRACE_SECONDS,
    POD,
    PodEvent,
    PodState,
    effective_grace_seconds,
)
from tests.unit.state_machines.pod_endings import ENDINGS, LATE_ENDINGS

rules = st.builds(
    RestartRule,
    action=st.sampled_from(["Restart", "RestartAllContainers", "Reboot"]),
    operator=st.sampled_from(["In", "NotIn", ""]),
    exit_codes=st.frozensets(st.integers(0, 255), max_size=4),
)


def test_a_pod_only_goes_forward() -> None:
    order = list(PodState)
    back = [row for row in POD.rows if order.index(row.target) < order.index(row.source)]
    assert back == []


@given(first=st.sampled_from(sorted(ENDINGS)), more=st.lists(st.sampled_from(LATE_ENDINGS)))
def test_endings_may_come_in_any_order_and_number(first: PodEvent, more: list[PodEvent]) -> None:
    state = POD.step(PodState.SYNC_POD, first)
    for event in more:
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


def test_a_container_that_may_run_is_never_made_a_second_time() -> None:
    """Not before it was seen to have ended, or a listing showed that it is gone."""
    made_anew = [row for row in CONTAINER.rows if row.target is ContainerStage.WAITING]
    assert {row.event for row in made_anew if row.source in LIVING} == {
        ContainerEvent.EXITED,
        ContainerEvent.GONE,
    }


@given(rules=st.lists(rules, max_size=3).map(tuple), exit_code=st.integers(0, 255))
def test_rules_can_add_restarts_but_never_take_one_away(
    rules: tuple[RestartRule, ...], exit_code: int
) -> None:
    for policy in RestartPolicy:
        without = RestartTerms(container_policy=policy)
        with_rules = RestartTerms(container_policy=policy, rules=rules)
        assert restarts_after(with_rules, exit_code) >= restarts_after(without, exit_code)


def test_the_relist_is_rare_only_while_a_proven_stream_is_open() -> None:
    rare = {state for state in PlegState if relist_period_seconds(state) > 1}
    begins = {row.event for row in PLEG.rows if row.source not in rare and row.target in rare}
    ends = {row.event for row in PLEG.rows if row.source in rare and row.target not in rare}
    goes_on = {row.event for row in PLEG.rows if row.source in rare and row.target in rare}
    assert begins == {PlegEvent.PROVEN}
    assert ends == {PlegEvent.STREAM_FAILED, PlegEvent.CHANGE_MISSED}
    assert goes_on == set()


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
