"""The changes to a pod's containers by which they have what the pod is allocated.

Pure: from what was allocated, what was actuated, and what runs to a `ResizePlan`. What is compared
is what was recorded (`allocations.py`), never what the kernel shows: the kernel rounds, and a
weight does not lead back to the shares that it was made of. Containers that do not run have nothing
to be changed: they are made with what is allocated.
"""

from collections.abc import Iterator, Mapping

from attrs import evolve, frozen

from trio_kubelet.k8s import Container, Pod, Quantity
from trio_kubelet.k8s.resources import ResourceResizeRestartPolicy
from trio_kubelet.runtime.observed import ObservedContainer, ObservedPod, ObservedState

RESIZABLE = ("memory", "cpu")
"""In the order of the Go kubelet."""
_NOTHING = Quantity(0)

_Amounts = Mapping[str, tuple[Quantity, Quantity]]
"""Request and limit of cpu and memory; what is absent is 0."""


@frozen(kw_only=True)
class ContainerUpdate:
    """A running container whose resources are changed without a restart."""

    container: Container
    """As it is allocated."""
    instance: ObservedContainer
    changed: frozenset[str] = frozenset(RESIZABLE)
    """The resources of which it has something else than it is allocated."""
    lowered_memory_limit_bytes: int | None = None
    """Its new memory limit, if that is lower than the one that the runtime enforces."""

    @property
    def grows(self) -> bool:
        """True if no memory limit is lowered: what shrinks goes first."""
        return self.lowered_memory_limit_bytes is None


@frozen(kw_only=True)
class ResizePlan:
    """The way from what a pod has to what it is allocated: in place, or by a restart."""

    update: tuple[ContainerUpdate, ...] = ()
    restart: frozenset[str] = frozenset()
    """The names of running containers whose resizePolicy asks for a restart."""
    idle: frozenset[str] = frozenset()
    """The names of containers that do not run, and get other resources when they do."""

    @property
    def without_restarts(self) -> "ResizePlan":
        """The same resize, but no container restarts for it now."""
        return evolve(self, restart=frozenset())

    @property
    def when_all_stopped(self) -> "ResizePlan":
        """The same resize of a pod whose containers do not run any more."""
        updated = (each.container.name for each in self.update)
        return ResizePlan(idle=self.idle | self.restart | frozenset(updated))


def plan_resize(allocated: Pod, actuated: Pod, observed: ObservedPod) -> ResizePlan | None:
    """Plan a resize; None if the pod has what it is allocated."""
    if allocated is actuated:
        return None
    before = {each.name: each for each in _containers(actuated)}
    updates: list[ContainerUpdate] = []
    restart: set[str] = set()
    idle: set[str] = set()
    for container in _containers(allocated):
        had, gets = _amounts(actuated, before[container.name]), _amounts(allocated, container)
        changed = frozenset(name for name in RESIZABLE if had[name] != gets[name])
        instance = observed.container(container.name)
        if instance is None or instance.state is not ObservedState.RUNNING:
            idle.add(container.name)
        elif changed & _restarting(container):
            restart.add(container.name)
        elif changed:
            limits = had["memory"][1], gets["memory"][1]
            updates.append(
                ContainerUpdate(
                    container=container,
                    instance=instance,
                    changed=changed,
                    lowered_memory_limit_bytes=_lowered_bytes(instance, *limits),
                )
            )
    return ResizePlan(update=tuple(updates), restart=frozenset(restart), idle=frozenset(idle))


def _containers(pod: Pod) -> Iterator[Container]:
    yield from pod.spec.init_containers
    yield from pod.spec.containers


def _amounts(pod: Pod, container: Container) -> _Amounts:
    """The limits of a container: where it has none of its own, the pod's holds (KEP-2837)."""
    own, whole = container.resources, pod.spec.resources
    requests = own.requests if own is not None else {}
    limits = {**(whole.limits if whole is not None else {}), **(own.limits if own else {})}
    return {name: (requests.get(name, _NOTHING), limits.get(name, _NOTHING)) for name in RESIZABLE}


def _lowered_bytes(instance: ObservedContainer, had: Quantity, gets: Quantity) -> int | None:
    """The memory limit that a container gets, if it is lower than the one that it has."""
    if not gets or (had and gets >= had):
        return None
    if instance.resources is not None and instance.resources.memory_limit_bytes == gets.value:
        # Lowered by an agent that was killed before it recorded that. The page cache may have
        # filled the container up to the new limit since: nothing is to wait for that.
        return None
    return gets.value


def _restarting(container: Container) -> set[str]:
    """The resources whose change restarts a container."""
    return {
        policy.resource_name
        for policy in container.resize_policy
        if policy.restart_policy == ResourceResizeRestartPolicy.RESTART_CONTAINER
    }
