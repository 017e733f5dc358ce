# ruff: noqa: E501 - a row of a table is one line
"""The life of one container of a pod.

Theory of operation
===================

Instances of a container of a pod's spec come and go one after another, and each further one
raises the restart count. The state is what the agent knows of the newest instance, and what it
has decided about it:

    Waiting    there is none yet, or the last one is done with: an image, a back-off, an init
               container before it must be waited for
    Created    made in the runtime, not started
    Running    started
    Stopping   is being stopped, and what follows its end is the restart policy's matter
    Replacing  is being stopped, and another takes its place
    Exited     ended, with an exit code
    Unknown    the runtime does not know, or no longer lists what ran
    Removed    the pod is over, the last instance and its logs are gone

What was seen comes first: the agent sees less than what happens (a container may start and exit
between two looks, the reply of a call that worked may be lost), so a state may be skipped, and
Waiting accepts whatever is found; an agent that was restarted begins there. What cannot be is
that an instance returns: from Exited the only way back to life is a new instance, and that takes
a decision. (An instance that another agent made, beside this one or in its place, is not the return
of the last one: its container begins anew, at the start.)

A decision is an event as well, and is checked here before anything is done. RESTARTED is that of
the restart policy, and its guard is `restarts_after`. REPLACED needs no policy: the spec changed,
the sandbox is a new one, all containers of the pod restart, or the instance never ran or cannot be
accounted for. STOPPED ends what runs and asks for nothing in its place. REMOVED is the end of the
pod.

A running container is never removed, and none is made beside it. It is stopped first, and seen to
have stopped: only Exited, or its absence from a listing, leads on.

Below the table: the restart policies and the crash-loop back-off. Which init container is next,
and what is stopped before what, are functions of the plan and the stop
(`trio_kubelet/runtime/lifecycle/`).
"""

from dataclasses import dataclass
from enum import StrEnum

from state_machines.backoff import BackoffPolicy
from state_machines.machine import Row, Start, StateMachine

UNKNOWN_EXIT_CODE = 137
"""The exit code of an instance of which nobody knows how it ended, as if it was killed."""


class ContainerStage(StrEnum):
    """The facts that are known of the newest instance of a container."""

    WAITING = "Waiting"
    CREATED = "Created"
    RUNNING = "Running"
    STOPPING = "Stopping"
    REPLACING = "Replacing"
    EXITED = "Exited"
    UNKNOWN = "Unknown"
    REMOVED = "Removed"


class ContainerEvent(StrEnum):
    """Events of a container. The first five are seen, the others decided."""

    CREATED = "Created"
    """A listing shows the instance, and that it was not started."""
    STARTED = "Started"
    """A listing shows that it runs."""
    EXITED = "Exited"
    """It ended by itself or was stopped."""
    LOST = "Lost"
    """The runtime reports its state as unknown."""
    GONE = "Gone"
    """The runtime does not list it any more."""
    RESTARTED = "Restarted"
    """The restart policy asks for a new instance."""
    REPLACED = "Replaced"
    """A new instance is needed, whatever the restart policy says."""
    STOPPED = "Stopped"
    """It is not to run any more: its pod is stopped, or a probe failed and nothing follows."""
    REMOVED = "Removed"
    """Its record and its logs go together with the pod."""


class RestartPolicy(StrEnum):
    """spec.restartPolicy of a pod or of a container."""

    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"


_POLICIES = frozenset(RestartPolicy)


class ContainerRole(StrEnum):
    """The part of a container in its pod."""

    REGULAR = "regular"
    INIT = "init"
    SIDECAR = "sidecar"
    """An init container with restartPolicy Always: it runs as long as the pod."""
    EPHEMERAL = "ephemeral"


class RestartAction(StrEnum):
    """The action of a restart rule (ContainerRestartRule.action)."""

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
        """True if the rule speaks of this exit code. Unknown operators never match."""
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
class RestartEvidence:
    """Evidence for another instance: the terms, and how the last one ended."""

    terms: RestartTerms
    exit_code: int = 0


def policy_restarts_it(evidence: RestartEvidence) -> bool:
    """True if the container's terms ask for a restart after this exit."""
    return restarts_after(evidence.terms, evidence.exit_code)


def it_may_be_repeated(evidence: RestartEvidence) -> bool:
    """True if an instance of unknown outcome is made anew.

    Its status says that it was killed, and the API server lets none back from an end that its
    policy makes final: so it counts as that end.
    """
    return restarts_after(evidence.terms, UNKNOWN_EXIT_CODE)


S, E = ContainerStage, ContainerEvent

# fmt: off
CONTAINER: StateMachine[ContainerStage, ContainerEvent, RestartEvidence] = StateMachine(
    name="container",
    starts=(
        Start(S.WAITING, "the pod is on this node"),
    ),
    terminal=frozenset({S.REMOVED}),
    rows=(
        Row(S.WAITING,   E.CREATED,   S.CREATED,   "made, or found made: the reply was lost, the agent was restarted"),
        Row(S.WAITING,   E.STARTED,   S.RUNNING,   "started, or found running after a restart of the agent: it is adopted"),
        Row(S.WAITING,   E.EXITED,    S.EXITED,    "found dead: its exit code counts"),
        Row(S.WAITING,   E.LOST,      S.UNKNOWN,   "found, but the runtime cannot say how it is"),
        Row(S.WAITING,   E.REMOVED,   S.REMOVED,   "the pod was over before an instance was made, or made anew"),

        Row(S.CREATED,   E.CREATED,   S.CREATED,   "still not started"),
        Row(S.CREATED,   E.STARTED,   S.RUNNING,   "it runs: a start whose reply was lost has worked"),
        Row(S.CREATED,   E.EXITED,    S.EXITED,    "it ended between two looks, or could not start (exit code 128)"),
        Row(S.CREATED,   E.LOST,      S.UNKNOWN,   "the runtime was restarted and cannot say"),
        Row(S.CREATED,   E.GONE,      S.WAITING,   "nothing is left of what never ran"),
        Row(S.CREATED,   E.REPLACED,  S.WAITING,   "made and started is one step: what stays created never started, or its start was cut off"),
        Row(S.CREATED,   E.REMOVED,   S.REMOVED,   "the pod ended before the start"),

        Row(S.RUNNING,   E.STARTED,   S.RUNNING,   "it still runs"),
        Row(S.RUNNING,   E.EXITED,    S.EXITED,    "it ended by itself"),
        Row(S.RUNNING,   E.LOST,      S.UNKNOWN,   "it may run or not: nothing may be concluded"),
        Row(S.RUNNING,   E.GONE,      S.UNKNOWN,   "somebody else removed it: how it ended nobody knows"),
        Row(S.RUNNING,   E.REPLACED,  S.REPLACING, "its spec or its sandbox changed, a probe failed and it is restarted, or all of its pod restart"),
        Row(S.RUNNING,   E.STOPPED,   S.STOPPING,  "the pod is stopped, or a probe failed and it is not restarted"),

        Row(S.STOPPING,  E.CREATED,   S.CREATED,   "it never ran: there is nothing to stop"),
        Row(S.STOPPING,  E.STARTED,   S.STOPPING,  "it has its grace, or the stop did not reach it"),
        Row(S.STOPPING,  E.EXITED,    S.EXITED,    "it was seen to have stopped"),
        Row(S.STOPPING,  E.LOST,      S.STOPPING,  "whatever it is, it is stopped"),
        Row(S.STOPPING,  E.GONE,      S.UNKNOWN,   "it does not run, and how it ended nobody knows"),
        Row(S.STOPPING,  E.REPLACED,  S.REPLACING, "its spec changed meanwhile: another takes its place after all"),
        Row(S.STOPPING,  E.STOPPED,   S.STOPPING,  "the stop is made again: it failed, was cut short, or there is less time"),

        Row(S.REPLACING, E.CREATED,   S.CREATED,   "it never ran: there is nothing to stop"),
        Row(S.REPLACING, E.STARTED,   S.REPLACING, "it has its grace, or the stop did not reach it"),
        Row(S.REPLACING, E.EXITED,    S.WAITING,   "it was seen to have stopped: another takes its place"),
        Row(S.REPLACING, E.LOST,      S.REPLACING, "nothing takes its place before it was seen to have stopped"),
        Row(S.REPLACING, E.GONE,      S.WAITING,   "a listing shows that it does not run: another takes its place"),
        Row(S.REPLACING, E.REPLACED,  S.REPLACING, "the stop is made again: it failed, or was cut short"),
        Row(S.REPLACING, E.STOPPED,   S.STOPPING,  "the pod is stopped: nothing takes its place"),

        Row(S.EXITED,    E.EXITED,    S.EXITED,    "the same end, seen again"),
        Row(S.EXITED,    E.LOST,      S.EXITED,    "an end that was seen stays known, whatever becomes of the record"),
        Row(S.EXITED,    E.GONE,      S.EXITED,    "an end that was seen stays known, although its record is gone"),
        Row(S.EXITED,    E.RESTARTED, S.WAITING,   "a new instance follows once the back-off is over", policy_restarts_it),
        Row(S.EXITED,    E.REPLACED,  S.WAITING,   "its sandbox is a new one, or all of its pod restart: that it ended once does not count"),
        Row(S.EXITED,    E.REMOVED,   S.REMOVED,   "the pod is over"),

        Row(S.UNKNOWN,   E.CREATED,   S.CREATED,   "it was never started"),
        Row(S.UNKNOWN,   E.STARTED,   S.RUNNING,   "it ran all the time"),
        Row(S.UNKNOWN,   E.EXITED,    S.EXITED,    "it has ended meanwhile"),
        Row(S.UNKNOWN,   E.LOST,      S.UNKNOWN,   "the runtime still cannot say"),
        Row(S.UNKNOWN,   E.GONE,      S.UNKNOWN,   "it is gone, and how it ended nobody knows"),
        Row(S.UNKNOWN,   E.REPLACED,  S.REPLACING, "it is stopped to be sure, and made anew", it_may_be_repeated),
        Row(S.UNKNOWN,   E.STOPPED,   S.STOPPING,  "it is stopped to be sure"),
        Row(S.UNKNOWN,   E.REMOVED,   S.REMOVED,   "the pod is over and a listing shows nothing running"),
    ),
)
# fmt: on

LIVING = frozenset({S.RUNNING, S.STOPPING, S.REPLACING, S.UNKNOWN})
"""The states in which an instance runs, or may run: it is stopped before anything else."""
FOLLOWED = frozenset({S.WAITING, S.CREATED, S.REPLACING})
"""The states in which another instance is to run, whatever the last one ended with."""


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
    known = [p for p in (terms.container_policy, terms.pod_policy) if p in _POLICIES]
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


def restarts_all(terms: RestartTerms, exit_code: int) -> bool:
    """True if this exit restarts all containers of the pod, init containers too (KEP-5532)."""
    return restart_action(terms, exit_code) is RestartAction.RESTART_ALL_CONTAINERS


def restarts_after(terms: RestartTerms, exit_code: int) -> bool:
    """True if an instance that ended with this exit code is followed by another one."""
    if restart_action(terms, exit_code) is not None:
        return True
    policy = effective_policy(terms)
    return policy is RestartPolicy.ALWAYS or (policy is RestartPolicy.ON_FAILURE and exit_code != 0)


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
