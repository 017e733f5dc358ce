"""Pods as they are planned: what a spec asks for, what is seen of it, and the plan in words."""

from collections.abc import Mapping

from attrs import evolve

from state_machines.backoff import Backoff
from trio_kubelet.k8s import Container, EphemeralContainer, ObjectMeta, Pod, PodSpec
from trio_kubelet.runtime.config.container_hash import container_hash
from trio_kubelet.runtime.lifecycle.container_table import ContainerTable
from trio_kubelet.runtime.lifecycle.plan import NewSandbox, Plan, PlanContext
from trio_kubelet.runtime.lifecycle.planning import plan_pod
from trio_kubelet.runtime.observed import (
    ObservedContainer,
    ObservedPod,
    ObservedSandbox,
    ObservedState,
)
from trio_kubelet.runtime.restarts import all_containers
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


def plan_of(pod: Pod, observed: ObservedPod, given: PlanContext) -> Plan:
    """The plan by the records that are given, and the hash of each container of the spec."""
    hashes = {each.name: container_hash(each) for each, _ in all_containers(pod)}
    return plan_pod(pod, observed, evolve(given, hashes=hashes))


def planned(
    pod: Pod,
    observed: ObservedPod,
    given: PlanContext = GIVEN,
    *,
    backoffs: Mapping[str, Backoff] | None = None,
) -> Plan:
    """The plan, whose decisions the table allows."""
    containers = table(pod, observed)
    records = {
        name: evolve(record, backoff=(backoffs or {}).get(name))
        for name, record in containers.records.items()
    }
    plan = plan_of(pod, observed, evolve(given, containers=records))
    containers.decide(pod, plan.decisions)
    return plan


def summary(plan: Plan) -> str:
    """A plan in a few words: `stop pod, sandbox 1, stop a, start a b, wait c`."""
    words = []
    if plan.stop_pod:
        words.append("stop pod")
    if isinstance(plan.sandbox, NewSandbox):
        words.append(f"sandbox {plan.sandbox.attempt}")
    if plan.stop:
        words.append("stop " + " ".join(order.container.name for order in plan.stop))
    if plan.start:
        words.append("start " + " ".join(order.container.name for order in plan.start))
    if plan.postponed:
        words.append("wait " + " ".join(order.container.name for order in plan.postponed))
    return ", ".join(words) or "nothing"
