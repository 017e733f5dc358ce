"""What a pod was given for its life, by the agent or its owner: ids, cpu, the use of images."""

from collections.abc import Iterator

import trio

from tests.simulation.node import Node
from tests.simulation.record import Life, Record
from tests.simulation.shapes import POD_RESOURCES, PRIVATE_IMAGES
from trio_kubelet.hollow import HollowRuntime
from trio_kubelet.hollow.records import HollowSandbox
from trio_kubelet.k8s import Quantity
from trio_kubelet.resources import milli_cpu_to_quota
from trio_kubelet.runtime.config.security import IdMapping
from trio_kubelet.runtime.images.collection import images_of_pods
from trio_kubelet.runtime.user_namespaces import mapping_of

_LIMITS = {name: Quantity(amount) for name, amount in POD_RESOURCES["limits"].items()}
POD_LIMITS = (
    milli_cpu_to_quota(_LIMITS["cpu"].milli_value, period_us=100_000),
    _LIMITS["memory"].value,
)
NO_LIMITS = (0, 0)


def wrong_ids(record: Record, runtime: HollowRuntime, sandbox: HollowSandbox) -> Iterator[str]:
    """A pod in a user namespace has ids of its own as long as it is there."""
    uid, ids = _uid(sandbox), mapping_of(sandbox.config)
    wanted = record.wanted.get(uid)
    if wanted is not None:
        if wanted.shape.has_own_ids is not (ids is not None):
            yield f"pod {uid} has the ids {ids}, its own: {wanted.shape.has_own_ids}"
        if wanted.ids is not None and wanted.ids != ids:
            yield f"the ids of pod {uid} went from {wanted.ids} to {ids}"
        wanted.ids = ids
    for other in runtime.sandboxes:
        theirs = mapping_of(other.config)
        if ids is None or theirs is None or not other.ready or _uid(other) == uid:
            continue
        first, last = max(ids.host_id, theirs.host_id), min(_end(ids), _end(theirs))
        if first < last:
            yield f"pods {uid} and {_uid(other)} share ids from {first} on"


def made_of_anothers_image(record: Record, uid: str, life: Life) -> Iterator[str]:
    """An image that was pulled with a login is for pods that have it."""
    wanted = record.wanted.get(uid)
    if wanted is not None and life.image in PRIVATE_IMAGES and not wanted.shape.has_login:
        yield f"{life.name} of pod {uid} has the image {life.image}, and no login for it"


def removed_in_use(node: Node, image_id: str) -> Iterator[str]:
    """An image is not removed while a container runs in it, or a pod here names it.

    A pod that has just come may have come too late.
    """
    image = node.runtime.images.by_id(image_id)
    if image is None or node.agent is None:
        return
    for container in node.runtime.containers:
        if container.process and not container.finished_at and container.image.id == image.id:
            yield f"image {image.tags} of the running container {container.name} is removed"
    now = trio.current_time()
    for stored in node.agent.parts.store.active():
        if now - stored.added_at > 1 and images_of_pods([stored.pod]) & set(image.tags):
            yield f"image {image.tags} of pod {stored.pod.metadata.key} is removed"


def beyond_its_pods_limits(record: Record, uid: str, life: Life) -> Iterator[str]:
    """Containers without limits of their own are made with those of their pod, if it has any."""
    wanted = record.wanted.get(uid)
    if wanted is None:
        return
    resources = life.container.config.linux.resources
    limits = (resources.cpu_quota, resources.memory_limit_in_bytes)
    quota, memory_bytes = POD_LIMITS if wanted.shape.has_limits else NO_LIMITS
    if life.name in wanted.shape.amounts:
        memory_bytes = limits[1]  # It has a limit of its own, which `resized` knows.
    if (milli := wanted.shape.cpu_limits.get(life.name)) is not None:
        # On CPUs that it has for itself nothing holds it up.
        own = life.name in wanted.shape.cpus
        quota = 0 if own else milli_cpu_to_quota(milli, period_us=100_000)
    if limits != (quota, memory_bytes):
        yield f"{life.name} of pod {uid} has the limits {limits} of cpu and memory"


def resized(record: Record, uid: str, life: Life) -> Iterator[str]:
    """Containers of a static pod are made with the amounts that it was allocated first.

    Those of others are made with what they have asked for at some time, and was not refused. Not
    where the allocation could not be kept.
    """
    wanted = record.wanted.get(uid)
    if wanted is None:
        return
    if life.name not in wanted.shape.amounts:
        return
    resources = life.container.config.linux.resources
    amounts = int(resources.cpu_shares), int(resources.memory_limit_in_bytes)
    if not wanted.is_static:
        asked = {each.amounts[life.name] for each in wanted.feasible}
        if amounts not in asked:
            yield f"{life.name} of pod {uid} has {amounts} of cpu and memory, but asked for {asked}"
        return
    first = wanted.amounts.setdefault(life.name, amounts)
    if amounts != first and record.disk_full_until < wanted.made_at:
        yield f"{life.name} of pod {uid} has {amounts} of cpu and memory, and was given {first}"


def _uid(sandbox: HollowSandbox) -> str:
    return str(sandbox.config.metadata.uid)


def _end(ids: IdMapping) -> int:
    return ids.host_id + ids.length
