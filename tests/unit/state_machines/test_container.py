import pytest

from state_machines.backoff import BackoffPolicy
from state_machines.container import (
    CONTAINER,
    LIVING,
    ContainerEvent,
    ContainerRole,
    ContainerStage,
    RestartAction,
    RestartEvidence,
    RestartPolicy,
    RestartRule,
    RestartTerms,
    container_role,
    crash_loop_policy,
    effective_policy,
    restart_action,
    restarts_after,
)
from state_machines.machine import IllegalTransition

DECISIONS = {
    ContainerEvent.RESTARTED,
    ContainerEvent.REPLACED,
    ContainerEvent.STOPPED,
    ContainerEvent.REMOVED,
}
ALWAYS, ON_FAILURE, NEVER = RestartPolicy
REGULAR, INIT, SIDECAR, EPHEMERAL = ContainerRole

ON_42 = RestartRule(action="Restart", operator="In", exit_codes=frozenset({42}))
NOT_ON_0_OR_1 = RestartRule(action="Restart", operator="NotIn", exit_codes=frozenset({0, 1}))
ALL_ON_42 = RestartRule(action="RestartAllContainers", operator="In", exit_codes=frozenset({42}))
UNHEARD_OF = RestartRule(action="Reboot", operator="In", exit_codes=frozenset({42}))
WITHOUT_CODES = RestartRule(action="Restart")


def test_a_crashing_container_goes_round_until_its_pod_ends() -> None:
    exit_1 = RestartEvidence(exit_code=1, terms=RestartTerms(pod_policy=ALWAYS))
    state = ContainerStage.WAITING
    for event in (ContainerEvent.CREATED, ContainerEvent.STARTED, ContainerEvent.EXITED):
        state = CONTAINER.step(state, event)
    state = CONTAINER.step(state, ContainerEvent.RESTARTED, exit_1)
    assert state is ContainerStage.WAITING
    for event in (
        ContainerEvent.CREATED,
        ContainerEvent.STARTED,
        ContainerEvent.EXITED,
        ContainerEvent.REMOVED,
    ):
        state = CONTAINER.step(state, event)
    assert state is ContainerStage.REMOVED


@pytest.mark.parametrize(
    ("event", "state"),
    [
        (ContainerEvent.CREATED, ContainerStage.CREATED),
        (ContainerEvent.STARTED, ContainerStage.RUNNING),
        (ContainerEvent.EXITED, ContainerStage.EXITED),
        (ContainerEvent.LOST, ContainerStage.UNKNOWN),
    ],
)
def test_whatever_an_earlier_agent_left_is_adopted(
    event: ContainerEvent, state: ContainerStage
) -> None:
    assert CONTAINER.step(ContainerStage.WAITING, event) is state


def test_an_exited_container_does_not_come_back_to_life() -> None:
    assert not CONTAINER.allows(ContainerStage.EXITED, ContainerEvent.STARTED)
    assert not CONTAINER.allows(ContainerStage.EXITED, ContainerEvent.CREATED)


def test_a_running_container_is_seen_to_have_stopped_before_it_is_removed_or_made_anew() -> None:
    living = (*LIVING, ContainerStage.CREATED)
    leads_on = {ContainerStage.WAITING, ContainerStage.REMOVED}
    decided = [
        (row.source, row.event)
        for row in CONTAINER.rows
        if row.source in living and row.target in leads_on and row.event in DECISIONS
    ]
    assert decided == [
        (ContainerStage.CREATED, ContainerEvent.REPLACED),
        (ContainerStage.CREATED, ContainerEvent.REMOVED),
        (ContainerStage.UNKNOWN, ContainerEvent.REMOVED),
    ], "what never ran may go at once, and what no listing shows any more"


@pytest.mark.parametrize("how", [ContainerEvent.EXITED, ContainerEvent.GONE])
def test_what_was_stopped_to_be_replaced_is_made_anew_whatever_the_policy(
    how: ContainerEvent,
) -> None:
    state = CONTAINER.step(ContainerStage.RUNNING, ContainerEvent.REPLACED)
    state = CONTAINER.step(state, ContainerEvent.STARTED)
    assert CONTAINER.step(state, how) is ContainerStage.WAITING


@pytest.mark.parametrize("event", [ContainerEvent.LOST, ContainerEvent.GONE])
def test_an_end_that_was_seen_stays_known(event: ContainerEvent) -> None:
    assert CONTAINER.step(ContainerStage.EXITED, event) is ContainerStage.EXITED


def test_restart_policy_never_leaves_a_failed_container_alone() -> None:
    evidence = RestartEvidence(exit_code=1, terms=RestartTerms(pod_policy=NEVER))
    with pytest.raises(IllegalTransition, match="unless policy restarts it"):
        CONTAINER.step(ContainerStage.EXITED, ContainerEvent.RESTARTED, evidence)
    assert CONTAINER.step(ContainerStage.EXITED, ContainerEvent.REPLACED) is ContainerStage.WAITING


@pytest.mark.parametrize(
    ("is_init", "policy", "role"),
    [
        (False, "", REGULAR),
        (False, "Always", REGULAR),
        (True, "", INIT),
        (True, "OnFailure", INIT),
        (True, "Always", SIDECAR),
    ],
)
def test_a_sidecar_is_an_init_container_that_restarts_always(
    is_init: bool, policy: str, role: ContainerRole
) -> None:
    assert container_role(is_init=is_init, container_policy=policy) is role


@pytest.mark.parametrize(
    ("role", "pod", "own", "expected"),
    [
        (REGULAR, "Always", "", ALWAYS),
        (REGULAR, "OnFailure", "", ON_FAILURE),
        (REGULAR, "Never", "", NEVER),
        (REGULAR, "", "", ALWAYS),
        (REGULAR, "Sometimes", "", ALWAYS),
        (REGULAR, "Never", "Always", ALWAYS),
        (REGULAR, "Always", "Never", NEVER),
        (REGULAR, "Never", "Sometimes", NEVER),
        (INIT, "Always", "", ON_FAILURE),
        (INIT, "OnFailure", "", ON_FAILURE),
        (INIT, "Never", "", NEVER),
        (INIT, "Always", "Never", NEVER),
        (INIT, "Never", "OnFailure", ON_FAILURE),
        (SIDECAR, "Never", "Always", ALWAYS),
        (EPHEMERAL, "Always", "", NEVER),
    ],
)
def test_the_policy_that_holds_for_a_container(
    role: ContainerRole, pod: str, own: str, expected: RestartPolicy
) -> None:
    terms = RestartTerms(pod_policy=pod, role=role, container_policy=own)
    assert effective_policy(terms) is expected


@pytest.mark.parametrize(
    ("own", "rules", "exit_code", "action", "restarts"),
    [
        ("Never", (ON_42,), 42, RestartAction.RESTART, True),
        ("Never", (ON_42,), 1, None, False),
        ("Never", (NOT_ON_0_OR_1,), 1, None, False),
        ("Never", (NOT_ON_0_OR_1,), 2, RestartAction.RESTART, True),
        ("Never", (ALL_ON_42, ON_42), 42, RestartAction.RESTART_ALL_CONTAINERS, True),
        ("Never", (ON_42, ALL_ON_42), 42, RestartAction.RESTART, True),
        ("Never", (UNHEARD_OF, ON_42), 42, None, False),
        ("Never", (WITHOUT_CODES,), 42, None, False),
        ("OnFailure", (ON_42,), 1, None, True),
        ("OnFailure", (ON_42,), 0, None, False),
        ("", (ON_42,), 42, None, False),
    ],
)
def test_the_first_rule_that_matches_the_exit_code_decides(
    own: str,
    rules: tuple[RestartRule, ...],
    exit_code: int,
    action: RestartAction | None,
    restarts: bool,
) -> None:
    terms = RestartTerms(pod_policy=NEVER, container_policy=own, rules=rules)
    assert restart_action(terms, exit_code) is action
    assert restarts_after(terms, exit_code) is restarts


@pytest.mark.parametrize(
    ("policy", "exit_code", "expected"),
    [
        (ALWAYS, 0, True),
        (ALWAYS, 1, True),
        (ON_FAILURE, 0, False),
        (ON_FAILURE, 137, True),
        (NEVER, 0, False),
        (NEVER, 1, False),
    ],
)
def test_an_exited_container_is_restarted_by_its_policy(
    policy: RestartPolicy, exit_code: int, expected: bool
) -> None:
    evidence = RestartEvidence(terms=RestartTerms(pod_policy=policy), exit_code=exit_code)
    allowed = CONTAINER.allows(ContainerStage.EXITED, ContainerEvent.RESTARTED, evidence)
    assert allowed is expected


@pytest.mark.parametrize(
    ("role", "policy", "expected"),
    [
        (REGULAR, NEVER, False),
        (REGULAR, ON_FAILURE, True),
        (SIDECAR, NEVER, True),
        (INIT, NEVER, False),
        (INIT, ON_FAILURE, True),
        (EPHEMERAL, ALWAYS, False),
    ],
)
def test_what_is_made_anew_when_nobody_knows_how_it_ended(
    role: ContainerRole, policy: RestartPolicy, expected: bool
) -> None:
    evidence = RestartEvidence(terms=RestartTerms(pod_policy=policy, role=role))
    allowed = CONTAINER.allows(ContainerStage.UNKNOWN, ContainerEvent.REPLACED, evidence)
    assert allowed is expected


@pytest.mark.parametrize(
    ("configured", "reduced_decay", "initial", "cap"),
    [
        (None, False, 10, 300),
        (300.0, False, 10, 300),
        (20.0, False, 10, 20),
        (4.0, False, 4, 4),
        (None, True, 1, 60),
        (30.0, True, 1, 30),
        (0.5, True, 0.5, 0.5),
    ],
)
def test_the_crash_loop_back_off_is_capped_by_the_configuration(
    configured: float | None, reduced_decay: bool, initial: float, cap: float
) -> None:
    assert crash_loop_policy(configured, reduced_decay=reduced_decay) == BackoffPolicy(
        initial_seconds=initial, cap_seconds=cap, forget_after_seconds=600
    )
