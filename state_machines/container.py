# ruff: noqa: E501 - a row of a table is one line
"""The life of one container of a pod.

Theory of operation
===================

A container of a pod's spec is a slot: instances come and go in it, one at a time, and each
further one raises the restart count. The slot's state is what the agent knows of the newest
instance:

    Waiting  there is none yet, or the last one is being replaced: an image, a back-off, an init
             container before it must be waited for
    Created  made in the runtime, not started
    Running  started
    Exited   ended, with an exit code
    Unknown  the runtime does not know, or no longer lists what ran
    Removed  the pod is over, the last instance and its logs are gone

Most events are observations, and the agent sees less than what happens: a container may start
and exit between two looks, and the reply of a call that worked may be lost. So a state may be
skipped, and Waiting accepts whatever is found (an agent that was restarted begins there). What
cannot be is that an instance returns: from Exited the only way back to life is a new instance,
and that takes a decision.

There are two such decisions. RESTARTED is that of the restart policy, and its guard is
`restarts_after`. REPLACED needs no policy: the spec changed, the sandbox is a new one, or the
instance never ran or cannot be accounted for.

A running container is never removed. It is stopped first, and seen to have stopped.

Below the table: the restart policies and the crash-loop back-off.
"""

from dataclasses import dataclass
from enum import StrEnum

from state_machines.backoff import BackoffPolicy
from state_machines.machine import Machine, Row, Start


class ContainerStage(StrEnum):
    """What is known of the newest instance of a container."""

    WAITING = "Waiting"
    CREATED = "Created"
    RUNNING = "Running"
    EXITED = "Exited"
    UNKNOWN = "Unknown"
    REMOVED = "Removed"


class ContainerEvent(StrEnum):
    """What can happen to a container. The first five are seen, the others decided."""

    CREATED = "Created"
    """The instance exists: CreateContainer returned, or a listing shows it."""
    STARTED = "Started"
    """It runs: StartContainer returned, or a listing shows it."""
    EXITED = "Exited"
    """It ended by itself or was stopped."""
    LOST = "Lost"
    """The runtime reports it as unknown, or does not list it any more."""
    REMOVED = "Removed"
    """Its record and its logs are gone together with the pod."""
    RESTARTED = "Restarted"
    """The restart policy asks for a new instance."""
    REPLACED = "Replaced"
    """A new instance is needed, whatever the restart policy says."""


class RestartPolicy(StrEnum):
    """spec.restartPolicy of a pod or of a container."""

    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"


class ContainerRole(StrEnum):
    """What a container is in its pod."""

    REGULAR = "regular"
    INIT = "init"
    SIDECAR = "sidecar"
    """An init container with restartPolicy Always: it runs as long as the pod."""
    EPHEMERAL = "ephemeral"


class RestartAction(StrEnum):
    """What a restart rule asks for (ContainerRestartRule.action)."""

    RESTART = "Restart"
    RESTART_ALL_CONTAINERS = "RestartAllContainers"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartRule:
    """One entry of a container's restartPolicyRules.

    `operator` is that of exitCodes: `In` or `NotIn`; empty if the rule has no exitCodes.
    """

    action: str
    operator: str = ""
    exit_codes: frozenset[int] = frozenset()

    def matches(self, exit_code: int) -> bool:
        """Whether the rule speaks of this exit code. Unknown operators never match."""
        if self.operator == "In":
            return exit_code in self.exit_codes
        return self.operator == "NotIn" and exit_code not in self.exit_codes


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartTerms:
    """All that decides about the restart of one container, in the words of the API.

    `pod_policy` is spec.restartPolicy of the pod, `container_policy` that of the container
    (empty: none of its own). Rules only count beside a policy of the container's own.
    """

    pod_policy: str = RestartPolicy.ALWAYS
    role: ContainerRole = ContainerRole.REGULAR
    container_policy: str = ""
    rules: tuple[RestartRule, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitEvidence:
    """How an instance ended, for `ContainerEvent.RESTARTED`."""

    exit_code: int
    terms: RestartTerms


def policy_restarts_it(evidence: ExitEvidence) -> bool:
    """Whether the container's terms ask for a restart after this exit."""
    return restarts_after(evidence.terms, evidence.exit_code)


S, E = ContainerStage, ContainerEvent

# fmt: off
CONTAINER: Machine[ContainerStage, ContainerEvent, ExitEvidence] = Machine(
    name="container",
    starts=(
        Start(S.WAITING, "the pod is on this node"),
    ),
    terminal=frozenset({S.REMOVED}),
    rows=(
        Row(S.WAITING, E.CREATED,       S.CREATED, "made, or found made: the reply was lost, the agent was restarted"),
        Row(S.WAITING, E.STARTED,       S.RUNNING, "found running after a restart of the agent: it is adopted"),
        Row(S.WAITING, E.EXITED,        S.EXITED,  "found dead after a restart of the agent: its exit code counts"),
        Row(S.WAITING, E.LOST,          S.UNKNOWN, "found, but the runtime cannot say how it is"),
        Row(S.WAITING, E.REMOVED,       S.REMOVED, "the pod was over before an instance was made"),

        Row(S.CREATED, E.CREATED,       S.CREATED, "the runtime's event tells what the agent did itself"),
        Row(S.CREATED, E.STARTED,       S.RUNNING, "it runs"),
        Row(S.CREATED, E.EXITED,        S.EXITED,  "it ended between two looks, or could not start (exit code 128)"),
        Row(S.CREATED, E.LOST,          S.UNKNOWN, "the runtime was restarted and cannot say"),
        Row(S.CREATED, E.REPLACED,      S.WAITING, "made and started is one step: what stays created never started, or its start was cut off"),
        Row(S.CREATED, E.REMOVED,       S.REMOVED, "the pod ended before the start"),

        Row(S.RUNNING, E.STARTED,       S.RUNNING, "the runtime's event tells what the agent did itself"),
        Row(S.RUNNING, E.EXITED,        S.EXITED,  "it ended, or was stopped: by a probe, a new spec, the end of the pod"),
        Row(S.RUNNING, E.LOST,          S.UNKNOWN, "it may run or not: nothing may be concluded"),

        Row(S.EXITED,  E.EXITED,        S.EXITED,  "the same end, seen again"),
        Row(S.EXITED,  E.LOST,          S.EXITED,  "an end that was seen stays known, whatever becomes of the record"),
        Row(S.EXITED,  E.RESTARTED,     S.WAITING, "a new instance follows once the back-off is over", policy_restarts_it),
        Row(S.EXITED,  E.REPLACED,      S.WAITING, "its spec or its sandbox changed: that it ended once does not count"),
        Row(S.EXITED,  E.REMOVED,       S.REMOVED, "the pod is over"),

        Row(S.UNKNOWN, E.LOST,          S.UNKNOWN, "the runtime still cannot say"),
        Row(S.UNKNOWN, E.STARTED,       S.RUNNING, "it ran all the time"),
        Row(S.UNKNOWN, E.EXITED,        S.EXITED,  "it has ended meanwhile"),
        Row(S.UNKNOWN, E.REPLACED,      S.WAITING, "it was stopped to be sure, and is made anew"),
        Row(S.UNKNOWN, E.REMOVED,       S.REMOVED, "the pod is over and a listing shows nothing running"),
    ),
)
# fmt: on


def container_role(*, is_init: bool, container_policy: str = "") -> ContainerRole:
    """Return the role of a container of spec.containers or spec.initContainers (KEP-753)."""
    if not is_init:
        return ContainerRole.REGULAR
    is_sidecar = container_policy == RestartPolicy.ALWAYS
    return ContainerRole.SIDECAR if is_sidecar else ContainerRole.INIT


def effective_policy(terms: RestartTerms) -> RestartPolicy:
    """Return the policy that holds for one container, its rules left aside.

    A policy of the container's own wins over the pod's. An init container whose pod says Always
    is only repeated until it succeeds. A pod without a policy, or with one that this agent does
    not know, is restarted always.
    """
    if terms.role is ContainerRole.EPHEMERAL:
        return RestartPolicy.NEVER
    if terms.role is ContainerRole.SIDECAR:
        return RestartPolicy.ALWAYS
    known = [p for p in (terms.container_policy, terms.pod_policy) if p in list(RestartPolicy)]
    policy = RestartPolicy(known[0]) if known else RestartPolicy.ALWAYS
    if terms.role is ContainerRole.INIT and policy is RestartPolicy.ALWAYS:
        return RestartPolicy.ON_FAILURE
    return policy


def restart_action(terms: RestartTerms, exit_code: int) -> RestartAction | None:
    """Return what the container's rules ask for after this exit, None if they ask for nothing.

    The first rule that matches decides (KEP-5307, KEP-5532). If its action is one that this
    agent does not know, the policy decides, not the next rule.
    """
    if not terms.container_policy:
        return None
    action = next((rule.action for rule in terms.rules if rule.matches(exit_code)), "")
    return RestartAction(action) if action in list(RestartAction) else None


def restarts_after(terms: RestartTerms, exit_code: int) -> bool:
    """Whether an instance that ended with this exit code is followed by another one."""
    if restart_action(terms, exit_code) is not None:
        return True
    policy = effective_policy(terms)
    return policy is RestartPolicy.ALWAYS or (policy is RestartPolicy.ON_FAILURE and exit_code != 0)


def should_restart(state: ContainerStage, terms: RestartTerms, exit_code: int = 0) -> bool:
    """Whether a new instance is wanted for a container in this state, in a pod that should run.

    `exit_code` counts in Exited only. What never ran, or cannot be accounted for, is made (anew)
    even where the policy is Never; an init container of unknown outcome is repeated unless the
    policy is Never (then the pod fails), and an ephemeral container runs once in its life.
    """
    if state in (S.WAITING, S.CREATED):
        return True
    if terms.role is ContainerRole.EPHEMERAL or state in (S.RUNNING, S.REMOVED):
        return False
    if state is S.EXITED:
        return restarts_after(terms, exit_code)
    if state is S.UNKNOWN and terms.role is ContainerRole.INIT:
        return effective_policy(terms) is not RestartPolicy.NEVER
    return True


def crash_loop_policy(
    max_restart_period_seconds: float | None = None, *, reduced_decay: bool = False
) -> BackoffPolicy:
    """Return how containers that keep exiting are slowed down (KEP-4603).

    `max_restart_period_seconds` is crashLoopBackOff.maxContainerRestartPeriod (None: not set);
    where it is shorter than the first delay, it is the first delay too. `reduced_decay` is the
    gate ReduceDefaultCrashLoopBackOffDecay. Ten minutes of running make a container a healthy one
    again, whatever the cap is.
    """
    initial, cap = (1.0, 60.0) if reduced_decay else (10.0, 300.0)
    if max_restart_period_seconds is not None:
        cap = max_restart_period_seconds
    return BackoffPolicy(
        initial_seconds=min(initial, cap), cap_seconds=cap, forget_after_seconds=600.0
    )
