"""The reason OOMKilled of containers that the kernel killed, where the runtime did not notice."""

from collections.abc import Collection

from attrs import evolve

from trio_kubelet.resources.oom_kills import OomKills
from trio_kubelet.resources.oom_ledger import SeenContainer
from trio_kubelet.runtime.observed import ObservedContainer, ObservedPod, ObservedState

OOM_KILLED = "OOMKilled"
_UNSPECIFIC = ("", "Error")
"""What runtimes say of an end whose cause they do not know."""


async def with_oom_kills(observed: ObservedPod, oom_kills: OomKills | None) -> ObservedPod:
    """Return the pod with the reasons that the kernel knows; None where there is no kernel."""
    if oom_kills is None:
        return observed
    seen = seen_containers(observed)
    return with_reasons(observed, await oom_kills.killed(observed.uid, seen, observed.observed_at))


def seen_containers(observed: ObservedPod) -> tuple[SeenContainer, ...]:
    """Return the containers of a pod as they are judged."""
    return tuple(
        SeenContainer(
            id=each.id,
            name=each.name,
            restart_count=each.restart_count,
            started=each.state is not ObservedState.CREATED,
            ended=each.state is ObservedState.EXITED,
            exit_code=each.exit_code,
            told_killed=each.reason == OOM_KILLED,
        )
        for each in observed.containers
    )


def with_reasons(observed: ObservedPod, killed: Collection[str]) -> ObservedPod:
    """Return the pod with OOMKilled where the runtime says nothing of its own."""
    if not killed:
        return observed
    return evolve(
        observed,
        containers=tuple(_with_reason(each, killed) for each in observed.containers),
    )


def _with_reason(container: ObservedContainer, killed: Collection[str]) -> ObservedContainer:
    if container.id not in killed or container.reason not in _UNSPECIFIC:
        return container
    return evolve(container, reason=OOM_KILLED)
