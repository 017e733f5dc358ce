"""What is planned for a pod, a row a case."""

from collections.abc import Mapping

import pytest
from attrs import evolve

from state_machines.container import ContainerEvent
from tests.unit.runtime.planned_pods import (
    GIVEN,
    container,
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
from trio_kubelet.k8s import Pod, Probe
from trio_kubelet.runtime.lifecycle.plan import NewSandbox
from trio_kubelet.runtime.observed import (
    ObservedContainer,
    ObservedPod,
    ObservedSandbox,
    ObservedState,
)

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
    [
        ("Always", ContainerEvent.REPLACED),
        ("OnFailure", ContainerEvent.REPLACED),
        ("Never", ContainerEvent.STOPPED),
    ],
)
def test_a_failed_probe_restarts_as_the_policy_says(policy: str, expected: ContainerEvent) -> None:
    pod = make_pod("a", "b", policy=policy)
    observed = observe(sandbox(), seen("a"), seen("b"))
    given = evolve(GIVEN, failed_probes={"a-s0": "liveness"})
    plan = planned(pod, observed, given)
    assert (summary(plan), [each.event for each in plan.decisions]) == ("stop a", [expected])


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


def test_the_predecessor_of_a_restart_is_named() -> None:
    plan = planned(make_pod("a", "b"), observe(sandbox(), exited("a", 1), seen("b")))
    (order,) = plan.start
    assert order.predecessor is not None
    assert order.predecessor.id == "a-s0"


@pytest.mark.parametrize(("policy", "restart"), [("Always", ", will be restarted"), ("Never", "")])
def test_a_stop_for_a_failed_probe_that_is_made_again_keeps_the_probes_grace(
    policy: str, restart: str
) -> None:
    policy_of_pod = make_pod("a", "b", policy=policy)
    probe = Probe(termination_grace_period_seconds=7)
    probed = evolve(container("a"), liveness_probe=probe)
    spec = evolve(policy_of_pod.spec, containers=(probed, container("b")))
    pod = evolve(policy_of_pod, spec=spec)
    containers = table(pod, observed := observe(sandbox(), seen("a", spec=probed), seen("b")))
    given = evolve(GIVEN, failed_probes={"a-s0": "liveness"})
    for _ in range(2):
        plan = plan_of(pod, observed, evolve(given, containers=containers.records))
        (order,) = plan.stop
        assert order.grace_seconds == 7
        assert order.message == f"Container a failed liveness probe{restart}"
        containers.decide(pod, plan.decisions)


@pytest.mark.parametrize("policy", ["Always", "OnFailure", "Never"])
def test_what_was_stopped_for_a_new_definition_is_started_whatever_it_exits_with(
    policy: str,
) -> None:
    pod = make_pod("a", policy=policy)
    old = seen("a", spec=container("a", image="old"))
    containers = table(pod, before := observe(sandbox(), old))
    given = evolve(GIVEN, containers=containers.records)
    containers.decide(pod, plan_of(pod, before, given).decisions)
    after = observe(sandbox(), evolve(old, state=ObservedState.EXITED, exit_code=0))
    containers.observe(pod, after)
    plan = plan_of(pod, after, evolve(given, containers=containers.records))
    assert summary(plan) == "start a"


def test_a_stop_that_was_cut_short_is_made_again_although_the_old_definition_is_back() -> None:
    pod = make_pod("a", "b")
    containers = table(pod, observed := observe(sandbox(), seen("a"), seen("b")))
    changed = evolve(pod, spec=evolve(pod.spec, containers=(container("a", image="new"),)))
    given = evolve(GIVEN, containers=containers.records)
    containers.decide(pod, plan_of(changed, observed, given).decisions)
    plan = plan_of(pod, observed, evolve(given, containers=containers.records))
    assert summary(plan) == "stop a"


def test_an_end_whose_record_somebody_removed_still_counts() -> None:
    pod = make_pod("a", "b", policy="Never")
    containers = table(pod, observe(sandbox(), exited("a", 0), seen("b")))
    containers.observe(pod, observed := observe(sandbox(), seen("b")))
    plan = plan_of(pod, observed, evolve(GIVEN, containers=containers.records))
    assert summary(plan) == "nothing"


@pytest.mark.parametrize("instance", [None, seen("a", UNKNOWN)], ids=["gone", "unknown"])
def test_nothing_takes_the_place_of_what_is_lost_under_a_policy_of_never(
    instance: ObservedContainer | None,
) -> None:
    pod = make_pod("a", "b", policy="Never")
    containers = table(pod, observe(sandbox(), seen("a"), seen("b")))
    left = (seen("b"),) if instance is None else (instance, seen("b"))
    containers.observe(pod, observed := observe(sandbox(), *left))
    plan = plan_of(pod, observed, evolve(GIVEN, containers=containers.records))
    assert summary(plan) == ("nothing" if instance is None else "stop a")
    containers.decide(pod, plan.decisions)
    containers.observe(pod, observed := observe(sandbox(), seen("b")))
    plan = plan_of(pod, observed, evolve(GIVEN, containers=containers.records))
    assert summary(plan) == "nothing"


def test_a_container_that_somebody_removed_while_it_ran_is_made_anew() -> None:
    pod = make_pod("a", "b", policy="OnFailure")
    containers = table(pod, observe(sandbox(), seen("a"), seen("b")))
    containers.observe(pod, observed := observe(sandbox(), seen("b")))
    plan = plan_of(pod, observed, evolve(GIVEN, containers=containers.records))
    assert summary(plan) == "stop a"
    containers.decide(pod, plan.decisions)
    containers.observe(pod, observed)
    plan = plan_of(pod, observed, evolve(GIVEN, containers=containers.records))
    assert summary(plan) == "start a"


def test_what_runs_under_never_ends_with_its_sandbox_though_another_starts_over() -> None:
    pod, always = make_pod("a", policy="Never"), container("b", policy="Always")
    pod = evolve(pod, spec=evolve(pod.spec, containers=(*pod.spec.containers, always)))
    plan = planned(pod, observe(sandbox(ready=False), seen("a"), seen("b", spec=always)))
    assert {each.name: each.event for each in plan.decisions} == {
        "a": ContainerEvent.STOPPED,
        "b": ContainerEvent.REPLACED,
    }
    assert summary(plan) == "stop pod, sandbox 1, start b"


@pytest.mark.parametrize(
    ("found", "host_network", "why"),
    [
        ((sandbox(ready=False),), False, "it is not ready"),
        ((sandbox(attempt=1), sandbox()), False, "another one is ready, too"),
        ((sandbox(),), True, "it is on another network than the pod wants"),
        ((sandbox(ips=()),), False, "it has no address"),
    ],
)
def test_a_sandbox_that_cannot_be_used_is_replaced_for_a_reason(
    found: tuple[ObservedSandbox, ...], host_network: bool, why: str
) -> None:
    new = planned(make_pod("a", host_network=host_network), observe(*found)).sandbox
    assert new == NewSandbox(attempt=found[0].attempt + 1, replaces=why)
