"""Short ways to write pods and what a runtime shows of them."""

from collections.abc import Mapping
from typing import Any

from state_machines.probe import ProbeVerdict
from trio_kubelet.k8s import (
    Container,
    EphemeralContainer,
    ObjectMeta,
    Pod,
    PodReadinessGate,
    PodSpec,
    PodStatus,
    ResourceStatus,
    Time,
)
from trio_kubelet.runtime.lifecycle.container_table import Reason
from trio_kubelet.runtime.lifecycle.resize_progress import ResizeStatus
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
NOW = 1_800_000_000 * SECOND
NODE = NodeIdentity(host_ips=("10.0.0.1",))
RUNNING, EXITED = ObservedState.RUNNING, ObservedState.EXITED
CREATED, UNKNOWN = ObservedState.CREATED, ObservedState.UNKNOWN


def a_pod(
    *names: str,
    init: tuple[Container, ...] = (),
    containers: tuple[Container, ...] = (),
    ephemeral: tuple[str, ...] = (),
    restart_policy: str = "Always",
    annotations: Mapping[str, str] | None = None,
    gates: tuple[str, ...] = (),
    generation: int | None = None,
    deleted: bool = False,
    host_network: bool | None = None,
    status: PodStatus | None = None,
) -> Pod:
    """A pod of one container `c` unless told otherwise."""
    regular = containers or tuple(Container(name=name, image="web") for name in names or ("c",))
    return Pod(
        metadata=ObjectMeta(
            name="p",
            namespace="n",
            uid="u",
            generation=generation,
            annotations=annotations or {},
            deletion_timestamp=Time.from_ns(NOW) if deleted else None,
        ),
        spec=PodSpec(
            containers=regular,
            init_containers=init,
            ephemeral_containers=tuple(EphemeralContainer(name=name) for name in ephemeral),
            restart_policy=restart_policy,
            host_network=host_network,
            readiness_gates=tuple(PodReadinessGate(condition_type=gate) for gate in gates),
        ),
        status=status or PodStatus(),
    )


def sidecar(name: str) -> Container:
    return Container(name=name, restart_policy="Always")


def instance(
    name: str, state: ObservedState, attempt: int = 0, *, exit_code: int = 0, **more: Any
) -> ObservedContainer:
    """The incarnation of a container with this restart count; its id is `<name>-<attempt>`."""
    return ObservedContainer(
        **{
            "id": f"{name}-{attempt}",
            "name": name,
            "sandbox_id": "s-0",
            "state": state,
            "restart_count": attempt,
            "created_at": NOW + attempt * SECOND,
            "started_at": 0 if state is CREATED else NOW + attempt * SECOND,
            "finished_at": NOW + (attempt + 1) * SECOND if state is EXITED else 0,
            "exit_code": exit_code,
            "reason": ("Error" if exit_code else "Completed") if state is EXITED else "",
            **more,
        }
    )


def sandbox(
    *, ready: bool = True, ips: tuple[str, ...] = ("10.1.0.2",), **more: Any
) -> ObservedSandbox:
    return ObservedSandbox(
        **{
            "id": "s-0",
            "name": "p",
            "namespace": "n",
            "uid": "u",
            "attempt": 0,
            "ready": ready,
            "created_at": NOW,
            "ips": ips,
            **more,
        }
    )


def seen(
    *containers: ObservedContainer, sandboxes: tuple[ObservedSandbox, ...] = (sandbox(),)
) -> ObservedPod:
    ips = sandboxes[0].ips if sandboxes and sandboxes[0].ready else ()
    newest_first = sorted(containers, key=lambda c: c.created_at, reverse=True)
    return ObservedPod(
        uid="u",
        name="p",
        namespace="n",
        observed_at=0.0,
        ips=ips,
        sandboxes=sandboxes,
        containers=tuple(newest_first),
    )


NOTHING = seen(sandboxes=())


def status_of(
    pod: Pod,
    observed: ObservedPod = NOTHING,
    *,
    previous: PodStatus | None = None,
    now_ns: int = NOW,
    reasons: Mapping[str, Reason] | None = None,
    restarting: frozenset[str] = frozenset(),
    failure: Failure | None = None,
    stopped: bool = False,
    probed: Mapping[str, ProbeVerdict] | None = None,
    node: NodeIdentity = NODE,
    resize: ResizeStatus | None = None,
    devices: Mapping[str, tuple[ResourceStatus, ...]] | None = None,
) -> PodStatus:
    return pod_status(
        pod,
        observed,
        PodStatusContext(
            previous=pod.status if previous is None else previous,
            now_ns=now_ns,
            node=node,
            reasons=reasons or {},
            restarting=restarting,
            failure=failure,
            stopped=stopped,
            probed=probed or {},
            resize=resize or ResizeStatus(),
            devices=devices or {},
        ),
    )
