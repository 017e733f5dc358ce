"""What is planned for a pod, a row a case."""

from collections.abc import Mapping

import pytest
from attrs import evolve

from state_machines.backoff import Backoff
from trio_kubelet.k8s import Container, EphemeralContainer, ObjectMeta, Pod, PodSpec, Probe
from trio_kubelet.runtime.config.container_hash import container_hash
from trio_kubelet.runtime.lifecycle.actions import PlanContext, PodActions, plan_pod
from trio_kubelet.runtime.lifecycle.container_table import ContainerTable
from trio_kubelet.runtime.observed import (
    ObservedContainer,
    ObservedPod,
    ObservedSandbox,
    ObservedState,
)
from trio_kubelet.telemetry import Journal

NOW_NS = 1_000_000_000_000
SECOND_NS = 1_000_000_000
GIVEN = PlanContext(now_ns=NOW_NS)


def container(name: str, *, policy: str = "", image: str = "busybox") -> Container:
    return Container(name=name, image=image, restart_policy=policy)


def make_pod(
    *regular: str,
    init: tuple[Container, ...] = (),
    ephemeral: tuple[str, ...] = (),
    policy: str = "Always",
    host_network: bool | None = None,
) -> Pod:
    return Pod(
        metadata=ObjectMeta(name="p", namespace="ns", uid="u"),
        spec=PodSpec(
            containers=tuple(container(name) for name in regular),
            init_containers=init,
            ephemeral_containers=tuple(EphemeralContainer(name=n, image="i") for n in ephemeral),
            restart_policy=policy,
            host_network=host_network,
        ),
    )


def sandbox(
    *,
    attempt: int = 0,
    ready: bool = True,
    ips: tuple[str, ...] = ("10.0.0.2",),
    host: bool = False,
) -> ObservedSandbox:
    return ObservedSandbox(
        id=f"s{attempt}",
        name="p",
        namespace="ns",
        uid="u",
        attempt=attempt,
        ready=ready,
        created_at=attempt + 1,
        ips=ips,
        host_network=host,
    )


def seen(
    name: str,
    state: ObservedState = ObservedState.RUNNING,
    *,
    exit_code: int = 0,
    in_sandbox: str = "s0",
    spec: Container | None = None,
    ended_ago: float = 0.0,
) -> ObservedContainer:
    return ObservedContainer(
        id=f"{name}-{in_sandbox}",
        name=name,
        sandbox_id=in_sandbox,
        state=state,
        exit_code=exit_code,
        hash=container_hash(spec or container(name)),
        created_at=1,
        finished_at=NOW_NS - round(ended_ago * SECOND_NS),
    )


def exited(name: str, exit_code: int, **options: object) -> ObservedContainer:
    return seen(name, ObservedState.EXITED, exit_code=exit_code, **options)  # type: ignore[arg-type]


def observe(*parts: ObservedSandbox | ObservedContainer) -> ObservedPod:
    return ObservedPod(
        uid="u",
        name="p",
        namespace="ns",
        observed_at=0,
        sandboxes=tuple(p for p in parts if isinstance(p, ObservedSandbox)),
        containers=tuple(p for p in parts if isinstance(p, ObservedContainer)),
    )


class Clock:
    """One at which it is always the same time."""

    def now_ns(self) -> int:
        return NOW_NS


def table(pod: Pod, observed: ObservedPod) -> ContainerTable:
    """The table of an agent that was just started and finds the pod so."""
    containers = ContainerTable(Journal(Clock()))
    containers.observe(pod, observed)
    return containers


def planned(
    pod: Pod,
    observed: ObservedPod,
    given: PlanContext = GIVEN,
    *,
    backoffs: Mapping[str, Backoff] | None = None,
) -> PodActions:
    """The plan, whose decisions the table allows."""
    containers = table(pod, observed)
    records = {
        name: evolve(record, backoff=(backoffs or {}).get(name))
        for name, record in containers.records.items()
    }
    plan = plan_pod(pod, observed, evolve(given, containers=records))
    containers.decide(pod, plan.decisions)
    return plan


def summary(plan: PodActions) -> str:
    """A plan in a few words: `stop pod, sandbox 1, stop a, start a b, wait c`."""
    words = []
    if plan.stop_pod:
        words.append("stop pod")
    if plan.create_sandbox:
        words.append(f"sandbox {plan.attempt}")
    if plan.stop:
        words.append("stop " + " ".join(order.container.name for order in plan.stop))
    if plan.start:
        words.append("start " + " ".join(order.container.name for order in plan.start))
    if plan.postponed:
        words.append("wait " + " ".join(order.container.name for order in plan.postponed))
    return ", ".join(words) or "nothing"


I1, I2 = container("i1"), container("i2")
SIDE = container("side", policy="Always")
RUNNING, CREATED, UNKNOWN = (
    ObservedState.RUNNING,
    ObservedState.CREATED,
    ObservedState.UNKNOWN,
)

SANDBOX_CASES: Mapping[str, tuple[Pod, ObservedPod, str]] = {
    "nothing there: a sandbox and all regular containers": (
        make_pod("a", "b"),
        observe(),
        "sandbox 0, start a b",
    ),
    "nothing there: only the first init container": (
        make_pod("a", init=(I1, I2)),
        observe(),
        "sandbox 0, start i1",
    ),
    "all runs: nothing": (make_pod("a"), observe(sandbox(), seen("a")), "nothing"),
    "the sandbox died: everything anew in the next attempt": (
        make_pod("a"),
        observe(sandbox(ready=False), exited("a", 137)),
        "stop pod, sandbox 1, start a",
    ),
    "the sandbox died, with init containers: they run again": (
        make_pod("a", init=(I1,)),
        observe(sandbox(ready=False), exited("i1", 0), exited("a", 137)),
        "stop pod, sandbox 1, start i1",
    ),
    "the sandbox died and nothing is restarted: the pod is over": (
        make_pod("a", policy="Never"),
        observe(sandbox(ready=False), exited("a", 137)),
        "stop pod",
    ),
    "the sandbox died before a container was made: policy Never starts it all the same": (
        make_pod("a", policy="Never"),
        observe(sandbox(ready=False)),
        "stop pod, sandbox 1, start a",
    ),
    "the sandbox died when all had succeeded: OnFailure runs none again": (
        make_pod("a", policy="OnFailure"),
        observe(sandbox(ready=False), exited("a", 0)),
        "stop pod",
    ),
    "the sandbox died, one had succeeded: OnFailure runs the other": (
        make_pod("a", "b", policy="OnFailure"),
        observe(sandbox(ready=False), exited("a", 0), exited("b", 137)),
        "stop pod, sandbox 1, start b",
    ),
    "two sandboxes are ready: one too many": (
        make_pod("a"),
        observe(sandbox(attempt=1), sandbox(), seen("a")),
        "stop pod, sandbox 2, start a",
    ),
    "the sandbox has no address": (
        make_pod("a"),
        observe(sandbox(ips=())),
        "stop pod, sandbox 1, start a",
    ),
    "the host's network needs no address": (
        make_pod("a", host_network=True),
        observe(sandbox(ips=(), host=True), seen("a")),
        "nothing",
    ),
    "the pod moved to the host's network": (
        make_pod("a", host_network=True),
        observe(sandbox(), seen("a")),
        "stop pod, sandbox 1, start a",
    ),
}

CONTAINER_CASES: Mapping[str, tuple[Pod, ObservedPod, str]] = {
    "Always restarts what succeeded": (
        make_pod("a", "b"),
        observe(sandbox(), exited("a", 0), seen("b")),
        "start a",
    ),
    "OnFailure leaves what succeeded": (
        make_pod("a", "b", policy="OnFailure"),
        observe(sandbox(), exited("a", 0), seen("b")),
        "nothing",
    ),
    "OnFailure restarts what failed": (
        make_pod("a", "b", policy="OnFailure"),
        observe(sandbox(), exited("a", 1), seen("b")),
        "start a",
    ),
    "Never leaves what failed": (
        make_pod("a", "b", policy="Never"),
        observe(sandbox(), exited("a", 1), seen("b")),
        "nothing",
    ),
    "nothing runs and nothing will: the sandbox goes": (
        make_pod("a", policy="Never"),
        observe(sandbox(), exited("a", 0)),
        "stop pod",
    ),
    "created and never started: anew": (
        make_pod("a", policy="Never"),
        observe(sandbox(), seen("a", CREATED)),
        "start a",
    ),
    "unknown: stopped to be sure, then anew": (
        make_pod("a"),
        observe(sandbox(), seen("a", UNKNOWN)),
        "stop a",
    ),
    "a new image replaces one container and leaves the other": (
        make_pod("a", "b"),
        observe(sandbox(), seen("a", spec=container("a", image="old")), seen("b")),
        "stop a",
    ),
    "a new image counts even where the policy is Never": (
        make_pod("a", policy="Never"),
        observe(sandbox(), seen("a", spec=container("a", image="old"))),
        "stop a",
    ),
    "a container without a hash is left alone": (
        make_pod("a"),
        observe(sandbox(), evolve(seen("a"), hash="")),
        "nothing",
    ),
    "an ephemeral container is started once": (
        make_pod("a", ephemeral=("e",)),
        observe(sandbox(), seen("a")),
        "start e",
    ),
    "an ephemeral container that never started is made anew": (
        make_pod("a", ephemeral=("e",)),
        observe(sandbox(), seen("a"), seen("e", CREATED)),
        "start e",
    ),
    "an ephemeral container is not started again": (
        make_pod("a", ephemeral=("e",)),
        observe(sandbox(), seen("a"), exited("e", 1)),
        "nothing",
    ),
}

INIT_CASES: Mapping[str, tuple[Pod, ObservedPod, str]] = {
    "the first runs: wait": (
        make_pod("a", init=(I1, I2)),
        observe(sandbox(), seen("i1")),
        "nothing",
    ),
    "the first is through: the second": (
        make_pod("a", init=(I1, I2)),
        observe(sandbox(), exited("i1", 0)),
        "start i2",
    ),
    "the last is through: the regular ones": (
        make_pod("a", "b", init=(I1, I2)),
        observe(sandbox(), exited("i1", 0), exited("i2", 0)),
        "start a b",
    ),
    "one failed: again, though the policy is Always and not OnFailure": (
        make_pod("a", init=(I1, I2)),
        observe(sandbox(), exited("i1", 1)),
        "start i1",
    ),
    "one failed and the policy is Never: the pod is over": (
        make_pod("a", init=(I1, I2), policy="Never"),
        observe(sandbox(), exited("i1", 1)),
        "stop pod",
    ),
    "the record of the first was removed: it is not run twice": (
        make_pod("a", init=(I1, I2)),
        observe(sandbox(), exited("i2", 0)),
        "start a",
    ),
    "a regular container runs: init containers are history": (
        make_pod("a", init=(I1, I2)),
        observe(sandbox(), seen("a")),
        "nothing",
    ),
    "those of an earlier sandbox do not count": (
        make_pod("a", init=(I1, I2)),
        observe(sandbox(attempt=1), exited("i1", 0), exited("i2", 0), exited("a", 137)),
        "start i1",
    ),
    "a sidecar starts, and holds up the next until it has started": (
        make_pod("a", init=(SIDE, I2)),
        observe(sandbox()),
        "start side",
    ),
    "a sidecar runs: the next": (
        make_pod("a", init=(SIDE, I2)),
        observe(sandbox(), seen("side", spec=SIDE)),
        "start i2",
    ),
    "a sidecar died while the next runs: again": (
        make_pod("a", init=(SIDE, I2)),
        observe(sandbox(), exited("side", 1), seen("i2")),
        "start side",
    ),
    "a sidecar died beside regular containers: again, policy Never or not": (
        make_pod("a", init=(SIDE,), policy="Never"),
        observe(sandbox(), exited("side", 0), seen("a")),
        "start side",
    ),
    "a sidecar alone keeps no pod alive": (
        make_pod("a", init=(SIDE,), policy="Never"),
        observe(sandbox(), seen("side", spec=SIDE), exited("a", 0)),
        "stop pod",
    ),
    "an init container runs to its end though its image changed": (
        make_pod("a", init=(I1,)),
        observe(sandbox(), seen("i1", spec=container("i1", image="old"))),
        "nothing",
    ),
    "an init container that is unknown is stopped and made again": (
        make_pod("a", init=(I1,)),
        observe(sandbox(), seen("i1", UNKNOWN)),
        "stop i1",
    ),
}


@pytest.mark.parametrize(
    ("pod", "observed", "expected"),
    [
        pytest.param(*case, id=name)
        for table in (SANDBOX_CASES, CONTAINER_CASES, INIT_CASES)
        for name, case in table.items()
    ],
)
def test_plan(pod: Pod, observed: ObservedPod, expected: str) -> None:
    assert summary(planned(pod, observed)) == expected


def test_a_sidecar_whose_startup_probe_has_not_succeeded_holds_up_the_next() -> None:
    pod = make_pod("a", init=(SIDE, I2))
    observed = observe(sandbox(), seen("side", spec=SIDE))
    given = evolve(GIVEN, unstarted=frozenset({"side-s0"}))
    assert summary(planned(pod, observed, given)) == "nothing"


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("Always", "stop a"), ("OnFailure", "stop a"), ("Never", "stop a")],
)
def test_a_failed_probe_restarts_as_the_policy_says(policy: str, expected: str) -> None:
    pod = make_pod("a", "b", policy=policy)
    observed = observe(sandbox(), seen("a"), seen("b"))
    given = evolve(GIVEN, failed_probes={"a-s0": "liveness"})
    assert summary(planned(pod, observed, given)) == expected


@pytest.mark.parametrize(
    ("failed", "grace_seconds"), [("liveness", 7), ("startup", None), ("definition", None)]
)
def test_a_probe_that_failed_may_give_its_container_a_grace_of_its_own(
    failed: str, grace_seconds: int | None
) -> None:
    liveness = Probe(termination_grace_period_seconds=7)
    probed = evolve(container("a"), liveness_probe=liveness, startup_probe=Probe())
    pod = evolve(make_pod("a"), spec=evolve(make_pod("a").spec, containers=(probed,)))
    spec = probed if failed != "definition" else container("a", image="other")
    given = evolve(GIVEN, failed_probes={"a-s0": failed})
    plan = planned(pod, observe(sandbox(), seen("a", spec=spec)), given)
    (order,) = plan.stop
    assert order.grace_seconds == grace_seconds


@pytest.mark.parametrize(("ran_seconds", "expected"), [(9.9, "wait a"), (10.0, "start a")])
def test_a_container_that_fails_its_probe_within_its_back_off_waits(
    ran_seconds: float, expected: str
) -> None:
    pod = make_pod("a")
    before = evolve(exited("a", 137, ended_ago=ran_seconds), id="a-before")
    containers = table(pod, observed := observe(sandbox(), seen("a"), before))
    given = evolve(GIVEN, failed_probes={"a-s0": "liveness"}, containers=containers.records)
    containers.decide(pod, plan_pod(pod, observed, given).decisions)
    observed = observe(sandbox(), exited("a", 137), before)
    containers.observe(pod, observed)
    backoff = Backoff(delay_seconds=10, decided_at_ns=NOW_NS - 60 * SECOND_NS)
    records = {"a": evolve(containers["a"], backoff=backoff)}
    plan = plan_pod(pod, observed, evolve(GIVEN, containers=records))
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
        plan = plan_pod(pod, observed, evolve(GIVEN, containers=records))
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


def test_the_predecessor_of_a_restart_is_named() -> None:
    plan = planned(make_pod("a", "b"), observe(sandbox(), exited("a", 1), seen("b")))
    (order,) = plan.start
    assert order.predecessor is not None
    assert order.predecessor.id == "a-s0"


@pytest.mark.parametrize("policy", ["Always", "OnFailure", "Never"])
def test_what_was_stopped_for_a_new_definition_is_started_whatever_it_exits_with(
    policy: str,
) -> None:
    pod = make_pod("a", policy=policy)
    old = seen("a", spec=container("a", image="old"))
    containers = table(pod, before := observe(sandbox(), old))
    given = evolve(GIVEN, containers=containers.records)
    containers.decide(pod, plan_pod(pod, before, given).decisions)
    after = observe(sandbox(), evolve(old, state=ObservedState.EXITED, exit_code=0))
    containers.observe(pod, after)
    plan = plan_pod(pod, after, evolve(given, containers=containers.records))
    assert summary(plan) == "start a"


def test_a_stop_that_was_cut_short_is_made_again_although_the_old_definition_is_back() -> None:
    pod = make_pod("a", "b")
    containers = table(pod, observed := observe(sandbox(), seen("a"), seen("b")))
    changed = evolve(pod, spec=evolve(pod.spec, containers=(container("a", image="new"),)))
    given = evolve(GIVEN, containers=containers.records)
    containers.decide(pod, plan_pod(changed, observed, given).decisions)
    plan = plan_pod(pod, observed, evolve(given, containers=containers.records))
    assert summary(plan) == "stop a"


def test_an_end_whose_record_somebody_removed_still_counts() -> None:
    pod = make_pod("a", "b", policy="Never")
    containers = table(pod, observe(sandbox(), exited("a", 0), seen("b")))
    containers.observe(pod, observed := observe(sandbox(), seen("b")))
    plan = plan_pod(pod, observed, evolve(GIVEN, containers=containers.records))
    assert summary(plan) == "nothing"


def test_a_container_that_somebody_removed_while_it_ran_is_made_anew() -> None:
    pod = make_pod("a", "b", policy="Never")
    containers = table(pod, observe(sandbox(), seen("a"), seen("b")))
    containers.observe(pod, observed := observe(sandbox(), seen("b")))
    plan = plan_pod(pod, observed, evolve(GIVEN, containers=containers.records))
    assert summary(plan) == "stop a"
    containers.decide(pod, plan.decisions)
    containers.observe(pod, observed)
    plan = plan_pod(pod, observed, evolve(GIVEN, containers=containers.records))
    assert summary(plan) == "start a"


def test_a_container_that_fails_its_probe_again_waits_for_its_back_off() -> None:
    pod = make_pod("a", "b")
    containers = table(pod, before := observe(sandbox(), seen("a"), seen("b")))
    given = evolve(GIVEN, containers=containers.records, failed_probes={"a-s0": "liveness"})
    containers.decide(pod, plan_pod(pod, before, given).decisions)
    containers.observe(pod, after := observe(sandbox(), exited("a", 0, ended_ago=3), seen("b")))
    backoff = Backoff(delay_seconds=10, decided_at_ns=NOW_NS - 60 * SECOND_NS)
    records = {**containers.records, "a": evolve(containers["a"], backoff=backoff)}
    plan = plan_pod(pod, after, evolve(GIVEN, containers=records))
    assert summary(plan) == "wait a"
