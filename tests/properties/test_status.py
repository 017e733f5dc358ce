"""What holds for the statuses of any pod over any sequence of observations."""

import json
from itertools import accumulate, pairwise
from operator import or_
from typing import Any

from attrs import evolve, frozen
from hypothesis import given
from hypothesis import strategies as st

from state_machines.probe import ProbeVerdict
from trio_kubelet.k8s import (
    Container,
    ContainerRestartRule,
    ContainerRestartRuleOnExitCodes,
    ContainerStatus,
    EphemeralContainer,
    ObjectMeta,
    Pod,
    PodSpec,
    PodStatus,
    Time,
)
from trio_kubelet.k8s.codec import decode, encode
from trio_kubelet.runtime.lifecycle.container_table import Reason
from trio_kubelet.runtime.observed import (
    ObservedContainer,
    ObservedPod,
    ObservedSandbox,
    ObservedState,
)
from trio_kubelet.status import Failure, NodeIdentity
from trio_kubelet.status.context import PodStatusContext
from trio_kubelet.status.generate import pod_status

SECOND = 1_000_000_000
START = 1_800_000_000 * SECOND
NODE = NodeIdentity(host_ips=("10.0.0.1",))
TERMINAL = ("Succeeded", "Failed")
NAMES = ("i", "j", "c", "d", "e")

policies = st.sampled_from(["", "Always", "OnFailure", "Never"])
rules = st.lists(
    st.builds(
        lambda codes: ContainerRestartRule(
            action="Restart",
            exit_codes=ContainerRestartRuleOnExitCodes(operator="In", values=tuple(codes)),
        ),
        st.lists(st.sampled_from([0, 1, 137]), max_size=2),
    ),
    max_size=1,
).map(tuple)


def containers(*names: str, at_least: int = 0) -> st.SearchStrategy[tuple[Container, ...]]:
    chosen = st.integers(at_least, len(names)).map(lambda count: names[:count])
    return chosen.flatmap(
        lambda some: st.tuples(
            *(
                st.builds(
                    Container,
                    name=st.just(name),
                    restart_policy=policies,
                    restart_policy_rules=rules,
                )
                for name in some
            )
        )
    )


pods = st.builds(
    lambda init, regular, ephemeral, policy, source: Pod(
        metadata=ObjectMeta(
            name="p",
            namespace="n",
            uid="u",
            annotations={"kubernetes.io/config.source": source},
        ),
        spec=PodSpec(
            init_containers=init,
            containers=regular,
            ephemeral_containers=ephemeral,
            restart_policy=policy,
        ),
    ),
    containers("i", "j"),
    containers("c", "d", at_least=1),
    st.sampled_from([(), (EphemeralContainer(name="e"),)]),
    policies,
    st.sampled_from(["api", "file"]),
)


def an_instance(
    name: str, attempt: int, count: int, state: ObservedState, code: int
) -> ObservedContainer:
    return ObservedContainer(
        id=f"{name}-{attempt}",
        name=name,
        sandbox_id=f"s-{attempt % 2}",
        state=state,
        restart_count=count,
        created_at=START + attempt * SECOND,
        exit_code=code if state is ObservedState.EXITED else 0,
    )


instances = st.builds(
    an_instance,
    st.sampled_from(NAMES),
    st.integers(0, 3),
    st.integers(0, 3),
    st.sampled_from(ObservedState),
    st.sampled_from([0, 1, 137]),
)
sandboxes = st.builds(
    ObservedSandbox,
    id=st.sampled_from(["s-0", "s-1"]),
    name=st.just("p"),
    namespace=st.just("n"),
    uid=st.just("u"),
    attempt=st.integers(0, 1),
    ready=st.booleans(),
    created_at=st.integers(START - 10 * SECOND, START + 10 * SECOND),
    ips=st.sampled_from([(), ("10.1.0.2",), ("fd00::2", "10.1.0.3")]),
)
observations = st.builds(
    lambda boxes, found: ObservedPod(
        uid="u",
        name="p",
        namespace="n",
        observed_at=0.0,
        ips=boxes[0].ips if boxes and boxes[0].ready else (),
        sandboxes=tuple(boxes),
        containers=tuple(sorted(found, key=lambda c: c.created_at, reverse=True)),
    ),
    st.lists(sandboxes, max_size=2),
    st.lists(instances, max_size=8, unique_by=lambda c: c.id),
)
reasons = st.dictionaries(
    st.sampled_from(NAMES), st.just(Reason(reason="CrashLoopBackOff", message="words"))
)
verdicts = st.dictionaries(
    st.sampled_from([f"{name}-{attempt}" for name in NAMES for attempt in range(4)]),
    st.builds(ProbeVerdict, started=st.booleans(), ready=st.booleans()),
)


@frozen(kw_only=True)
class Look:
    """One report: all that varies from one to the next."""

    observed: ObservedPod
    reasons: dict[str, Reason]
    restarting: frozenset[str]
    probed: dict[str, ProbeVerdict]
    failure: Failure | None
    stopped: bool
    deleted: bool

    def status(self, pod: Pod, previous: PodStatus, now_ns: int) -> PodStatus:
        deleted = evolve(pod.metadata, deletion_timestamp=Time.from_ns(START))
        return pod_status(
            evolve(pod, metadata=deleted) if self.deleted else pod,
            self.observed,
            PodStatusContext(
                previous=previous,
                now_ns=now_ns,
                node=NODE,
                reasons=self.reasons,
                restarting=self.restarting,
                failure=self.failure,
                stopped=self.stopped,
                probed=self.probed,
            ),
        )


seldom = st.integers(0, 9).map(lambda n: n == 0)
looks = st.builds(
    Look,
    observed=observations,
    reasons=reasons,
    restarting=st.frozensets(st.sampled_from(NAMES)),
    probed=verdicts,
    failure=st.sampled_from([None, None, None, Failure(reason="Evicted", disruption="No room")]),
    stopped=seldom,
    deleted=seldom,
)


def as_it_happens(history: list[Look]) -> list[Look]:
    """What is deleted, or has stopped, stays so."""
    deleted = accumulate((look.deleted for look in history), or_)
    stopped = accumulate((look.stopped for look in history), or_)
    return [
        evolve(look, deleted=gone, stopped=ended)
        for look, gone, ended in zip(history, deleted, stopped, strict=True)
    ]


histories = st.lists(looks, min_size=1, max_size=6).map(as_it_happens)


def statuses_over(pod: Pod, history: list[Look]) -> list[PodStatus]:
    """The status before the first look, and that after each, a second apart."""
    statuses = [PodStatus()]
    for i, look in enumerate(history):
        statuses.append(look.status(pod, statuses[-1], START + i * SECOND))
    return statuses


def every_container(status: PodStatus) -> tuple[ContainerStatus, ...]:
    return (
        *status.init_container_statuses,
        *status.container_statuses,
        *status.ephemeral_container_statuses,
    )


def pairs(statuses: list[PodStatus]) -> list[tuple[PodStatus, PodStatus]]:
    return list(pairwise(statuses))


@given(pods, histories)
def test_a_terminal_phase_is_final_and_so_are_its_words(pod: Pod, history: list[Look]) -> None:
    for before, after in pairs(statuses_over(pod, history)):
        if before.phase in TERMINAL:
            assert (after.phase, after.reason, after.message) == (
                before.phase,
                before.reason,
                before.message,
            )


@given(pods, histories)
def test_no_phase_becomes_terminal_while_something_runs(pod: Pod, history: list[Look]) -> None:
    for before, after in pairs(statuses_over(pod, history)):
        if after.phase in TERMINAL and before.phase not in TERMINAL:
            assert not [s.name for s in every_container(after) if s.state and s.state.running]


@given(pods, histories)
def test_restart_counts_never_go_back(pod: Pod, history: list[Look]) -> None:
    for before, after in pairs(statuses_over(pod, history)):
        now = {s.name: s.restart_count for s in every_container(after)}
        for status in every_container(before):
            assert now[status.name] >= status.restart_count


@given(pods, histories)
def test_every_container_of_the_spec_has_exactly_one_status(pod: Pod, history: list[Look]) -> None:
    spec = pod.spec
    for status in statuses_over(pod, history)[1:]:
        for shown, wanted in (
            (status.init_container_statuses, spec.init_containers),
            (status.container_statuses, spec.containers),
            (status.ephemeral_container_statuses, spec.ephemeral_containers),
        ):
            assert [s.name for s in shown] == [c.name for c in wanted]


@given(pods, histories)
def test_every_container_is_in_exactly_one_state(pod: Pod, history: list[Look]) -> None:
    for status in statuses_over(pod, history)[1:]:
        for container in every_container(status):
            assert container.state is not None
            state = container.state
            assert sum(s is not None for s in (state.waiting, state.running, state.terminated)) == 1
            assert state.running or not container.started


@given(pods, histories)
def test_a_condition_gets_a_new_time_if_and_only_if_its_status_changes(
    pod: Pod, history: list[Look]
) -> None:
    for before, after in pairs(statuses_over(pod, history)):
        known = {c.type: c for c in before.conditions}
        for condition in after.conditions:
            earlier = known.get(condition.type)
            same_time = (
                earlier is not None
                and earlier.last_transition_time == condition.last_transition_time
            )
            assert same_time == (earlier is not None and earlier.status == condition.status)


@given(pods, histories)
def test_a_pod_that_was_stopped_has_no_container_without_an_end(
    pod: Pod, history: list[Look]
) -> None:
    last = evolve(history[-1], observed=EMPTY, stopped=True)
    status = statuses_over(pod, [*history, last])[-1]
    assert not [s.name for s in every_container(status) if s.state and s.state.running]
    assert not [c for c in status.conditions if c.type == "Ready" and c.status == "True"]
    if pod.metadata.annotations["kubernetes.io/config.source"] == "api":
        assert status.phase in TERMINAL


EMPTY = ObservedPod(uid="u", name="p", namespace="n", observed_at=0.0)


@given(pods, histories)
def test_looking_again_at_the_same_changes_nothing(pod: Pod, history: list[Look]) -> None:
    status = statuses_over(pod, history)[-1]
    again = history[-1].status(pod, status, START + 3600 * SECOND)
    assert again == status


@given(pods, histories)
def test_a_status_says_the_same_on_the_wire(pod: Pod, history: list[Look]) -> None:
    status = statuses_over(pod, history)[-1]
    data: Any = json.loads(json.dumps(encode(status)))
    assert decode(PodStatus, data) == status
