"""Pods that ask for CPUs and devices."""

from attrs import evolve

from lab.device_plugin import RESOURCE
from trio_kubelet.k8s import (
    Container,
    ContainerRestartPolicy,
    ObjectMeta,
    Pod,
    PodSpec,
    Quantity,
    ResourceRequirements,
)


def guaranteed(name: str, cpu: str, *, sidecar: bool = False, memory: str = "1Gi") -> Container:
    """A container whose limits are its requests."""
    amounts = {"cpu": Quantity(cpu), "memory": Quantity(memory)}
    return Container(
        name=name,
        image="i",
        resources=ResourceRequirements(requests=amounts, limits=amounts),
        restart_policy=ContainerRestartPolicy.ALWAYS if sidecar else "",
    )


def a_pod(
    uid: str, *containers: Container | str, init: tuple[Container, ...] = (), whole: str = ""
) -> Pod:
    """A pod of containers, or of one for each number of CPUs: c0, c1, and so on.

    `whole` is the number of CPUs that it asks for as a pod.
    """
    amounts = {"cpu": Quantity(whole), "memory": Quantity("1Gi")} if whole else {}
    return Pod(
        metadata=ObjectMeta(name=uid, namespace="ns", uid=uid),
        spec=PodSpec(
            init_containers=init,
            containers=tuple(
                guaranteed(f"c{number}", each) if isinstance(each, str) else each
                for number, each in enumerate(containers)
            ),
            resources=ResourceRequirements(requests=amounts, limits=amounts) if whole else None,
        ),
    )


def with_devices(count: int, cpu: str = "2", name: str = "c0") -> Container:
    """A container of a Guaranteed pod that asks for devices, too."""
    container = guaranteed(name, cpu)
    assert container.resources is not None
    amounts = {**container.resources.limits, RESOURCE: Quantity(count)}
    return evolve(container, resources=ResourceRequirements(requests=amounts, limits=amounts))
