"""Short ways to write pods that differ in their resources."""

from collections.abc import Mapping

from trio_kubelet.k8s import Container, ObjectMeta, Pod, PodSpec, Quantity, ResourceRequirements


def amounts(text: str) -> Mapping[str, Quantity]:
    """`"cpu=100m memory=1Gi"` as resource name → quantity."""
    pairs = (part.split("=") for part in text.split())
    return {name: Quantity(value) for name, value in pairs}


def requirements(requests: str = "", limits: str = "") -> ResourceRequirements:
    return ResourceRequirements(requests=amounts(requests), limits=amounts(limits))


def container(requests: str = "", limits: str = "", *, restart_policy: str = "") -> Container:
    return Container(
        name="c", resources=requirements(requests, limits), restart_policy=restart_policy
    )


def pod(
    *containers: Container,
    init: tuple[Container, ...] = (),
    uid: str = "12-34",
    overhead: str = "",
    level: ResourceRequirements | None = None,
) -> Pod:
    spec = PodSpec(
        containers=containers, init_containers=init, overhead=amounts(overhead), resources=level
    )
    return Pod(metadata=ObjectMeta(name="p", namespace="n", uid=uid), spec=spec)
