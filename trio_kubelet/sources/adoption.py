"""Which running pod is a static pod that a source has: an earlier kubelet may have named it."""

from collections.abc import Callable, Iterable

from trio_kubelet.k8s import Pod
from trio_kubelet.pod_source import CONFIG_SOURCE, Source
from trio_kubelet.runtime.config.container_hash import container_hash
from trio_kubelet.runtime.observed import ObservedPod


def adoptable_uid(
    running: Callable[[], Iterable[ObservedPod]], pod: Pod, source: Source
) -> str | None:
    """The UID of a running pod that is this static pod: same name, source and containers."""
    wanted = {container.name: container_hash(container) for container in pod.spec.containers}
    for candidate in running():
        sandbox = candidate.ready_sandbox
        if sandbox is None or sandbox.annotations.get(CONFIG_SOURCE) != source:
            continue
        names = (pod.metadata.namespace, pod.metadata.name)
        if (candidate.namespace, candidate.name) != names:
            continue
        found = {c.name: c.hash for c in reversed(candidate.containers) if c.name in wanted}
        if found and all(wanted[name] == hash_ for name, hash_ in found.items()):
            return candidate.uid
    return None
