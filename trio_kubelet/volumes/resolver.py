"""The volumes of pods, resolved once: claims and persistent volumes are fetched when a pod comes.

A pod keeps the volume that it has got for as long as it is here, whatever becomes of its claim: a
claim that is deleted while a pod uses it stays until that pod is gone. What could not be resolved
is tried again by back-off; in between the last error stands.

A volume that is for one pod alone (ReadWriteOncePod) belongs to the first that asks for it, until
that one has given its volumes back. Which one had it before the agent started, the folders of pods
tell.
"""

from collections.abc import Callable
from functools import partial

from attrs import define, field

from trio_kubelet.k8s import Node, Pod, Volume
from trio_kubelet.references import NoReferences, ObjectError, References
from trio_kubelet.volumes.back_offs import BackOffs, Key
from trio_kubelet.volumes.folders import PodFolders
from trio_kubelet.volumes.persistent_users import pods_that_have
from trio_kubelet.volumes.plugin import AFFINITY_OF_DEVICE, VolumeError, VolumeThreads
from trio_kubelet.volumes.resolved import (
    ResolvedVolume,
    UnresolvedVolumeError,
    affinity_problem,
    check_bound_to,
    check_claim,
    check_owner,
    claim_name,
    resolve_claimed,
    resolve_own,
)


@define(eq=False)
class VolumeResolver:
    """Resolves the volumes of pods, and knows which pods use which persistent volumes.

    `node` returns the Node object, None while it is not known.
    """

    _objects: References | NoReferences
    _node: Callable[[], Node | None]
    _folders: PodFolders
    _threads: VolumeThreads
    _resolved: dict[Key, ResolvedVolume] = field(init=False, factory=dict)
    _back_offs: BackOffs = field(init=False, factory=BackOffs)
    _users: dict[str, set[str]] = field(init=False, factory=dict)
    """The UIDs of the pods that use a persistent volume, by its name."""

    async def resolve(self, pod: Pod, volume: Volume) -> ResolvedVolume:
        """Return what is to be mounted for a volume.

        Raises UnresolvedVolumeError where that is not known, VolumeBackOff where it is not asked
        for before a time, and VolumeError where it must not be mounted for this pod.
        """
        name = claim_name(pod, volume)
        if not name:
            return resolve_own(volume)
        key = pod.metadata.uid, volume.name
        known = self._resolved.get(key)
        if known is None:
            known = self._resolved[key] = await self._retry(key, pod, volume, name)
        self._use(pod.metadata.uid, known, await self._earlier_users(pod, known))
        return known

    def forget(self, pod_uid: str) -> None:
        """A pod has no volumes any more."""
        for key in [key for key in self._resolved if key[0] == pod_uid]:
            del self._resolved[key]
        self._back_offs.forget(pod_uid)
        for name, users in list(self._users.items()):
            users.discard(pod_uid)
            if not users:
                del self._users[name]

    async def _retry(self, key: Key, pod: Pod, volume: Volume, claim: str) -> ResolvedVolume:
        """Resolve a volume unless it failed a moment ago. Raises VolumeBackOff."""
        self._back_offs.check(key)
        try:
            found = await self._fetch(pod, volume, claim)
        except UnresolvedVolumeError as error:
            raise self._back_offs.failed(key, error) from error
        self._back_offs.succeeded(key)
        return found

    async def _fetch(self, pod: Pod, volume: Volume, claim_name: str) -> ResolvedVolume:
        namespace, objects = pod.metadata.namespace, self._objects
        try:
            claim = await objects.claim(namespace, claim_name)
            check_claim(claim)
            check_owner(pod, volume, claim)
            persistent = await objects.persistent_volume(namespace, claim.spec.volume_name)
            check_bound_to(persistent, claim)
        except ObjectError as error:
            why = f"error processing PVC {namespace}/{claim_name}: {error}"
            raise UnresolvedVolumeError(volume.name, why) from error
        return resolve_claimed(pod, volume, persistent)

    async def _earlier_users(self, pod: Pod, volume: ResolvedVolume) -> frozenset[str]:
        """Return the pods that have a volume for one pod, if this one is not known to have it.

        Raises VolumeError where the disk does not tell.
        """
        persistent = volume.persistent
        if persistent is None or not volume.is_for_one_pod:
            return frozenset()
        name = persistent.metadata.name
        if pod.metadata.uid in self._users.get(name, ()):
            return frozenset()
        look = partial(pods_that_have, self._folders, name)
        try:
            return await self._threads.preparing.share_of(pod.metadata).run_sync(look)
        except OSError as error:
            raise VolumeError(volume.spec_name, str(error)) from error

    def _use(self, pod_uid: str, volume: ResolvedVolume, earlier: frozenset[str]) -> None:
        """Note that a pod uses a persistent volume, if it may. Raises VolumeError."""
        persistent = volume.persistent
        if persistent is None:
            return
        problem = affinity_problem(persistent, self._node())
        users = self._users.setdefault(persistent.metadata.name, set())
        if pod_uid not in users and problem:
            step = AFFINITY_OF_DEVICE if volume.is_block else "MountVolume.NodeAffinity check"
            raise VolumeError(volume.spec_name, problem, step)
        if volume.is_for_one_pod and (users | earlier) - {pod_uid}:
            raise VolumeError(
                volume.spec_name,
                "volume uses the ReadWriteOncePod access mode and is already in use by another pod",
            )
        users.add(pod_uid)
