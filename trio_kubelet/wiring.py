"""Where parts meet that do not know each other: small adapters, made by the agent.

`sync/` says in protocols what it needs of a pod's storage, and `runtime/` what it needs of its
sub-paths; volumes, logs and folders are other parts with words of their own. Housekeeping asks
each part what it has of which pod.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import trio

from trio_kubelet.concurrency import run_concurrently
from trio_kubelet.k8s import Container, Pod
from trio_kubelet.pleg import RuntimeCache
from trio_kubelet.pod_source import CONFIG_SOURCE, is_static
from trio_kubelet.references import EnvironmentData, ObjectError, References
from trio_kubelet.resources import CgroupBusy, Cgroups, QosClass, SystemdError, qos_class
from trio_kubelet.runtime.config.config_error import ConfigError
from trio_kubelet.runtime.config.container_hash import container_hash
from trio_kubelet.runtime.config.environment import FetchedSources
from trio_kubelet.runtime.config.mounts import PreparedVolume
from trio_kubelet.runtime.images.credentials import Keyring, keyring_of
from trio_kubelet.runtime.lifecycle.allocations import Allocations
from trio_kubelet.runtime.lifecycle.inputs import PodInputs
from trio_kubelet.runtime.lifecycle.pod_files import pods_with_logs, remove_pod_logs
from trio_kubelet.runtime.node_facts import NodeFacts
from trio_kubelet.runtime.observed import ObservedPod
from trio_kubelet.sources import Source
from trio_kubelet.sync.housekeeping import Found, Leftover
from trio_kubelet.sync.pod_syncer import PreparationError
from trio_kubelet.telemetry import EventRecorder, EventType
from trio_kubelet.volumes import (
    MountedVolume,
    VolumeBusy,
    VolumeError,
    Volumes,
    VolumesNotReady,
)
from trio_kubelet.volumes.env_file import read_env_file
from trio_kubelet.volumes.readiness import volumes_ready_without_wait


class PodStorage:
    """Volumes, folders and logs of pods, as a pod's session wants them."""

    def __init__(
        self,
        volumes: Volumes,
        recorder: EventRecorder,
        node: NodeFacts,
        file_limiter: trio.CapacityLimiter,
        allocations: Allocations,
        references: References | None = None,
    ) -> None:
        self._references = references
        self._volumes = volumes
        self._recorder = recorder
        self._node = node
        self._file_limiter = file_limiter
        self._allocations = allocations

    async def prepare(self, pod: Pod) -> PodInputs:
        """Make folders, mount volumes, fetch for variables. Raises PreparationError."""
        if self._references is not None:
            self._references.register(pod)
        mounted: Mapping[str, MountedVolume] = {}
        data = EnvironmentData()

        async def mount() -> None:
            nonlocal mounted
            mounted = await self._mount(pod)

        async def fetch() -> None:
            nonlocal data
            data = await self._fetch(pod)

        await run_concurrently(mount, fetch)
        await self._allocations.keep()
        return PodInputs(
            volumes={name: _for_runtime(volume) for name, volume in mounted.items()},
            sources=FetchedSources(
                config_maps=data.config_maps,
                secrets=data.secrets,
                problems=data.problems,
                read_env_file=partial(read_env_file, mounted),
            ),
            services=data.services,
        )

    def volumes_ready_without_wait(self, pod: Pod) -> bool:
        """Whether nothing that the pod's volumes are made of can be missing for long."""
        return volumes_ready_without_wait(pod)

    async def _mount(self, pod: Pod) -> Mapping[str, MountedVolume]:
        try:
            mounted = await self._volumes.prepare(pod)
        except VolumesNotReady as error:
            for each in error.errors[:-1]:
                self._recorder.pod(pod, EventType.WARNING, "FailedMount", str(each))
            raise PreparationError("FailedMount", str(error.errors[-1])) from error
        except OSError as error:
            message = f"error making pod data directories: {error}"
            raise PreparationError("Failed", message) from error
        for volume in mounted.values():
            if volume.outdated is not None:
                self._recorder.pod(pod, EventType.WARNING, "FailedMount", str(volume.outdated))
        return mounted

    async def _fetch(self, pod: Pod) -> EnvironmentData:
        if self._references is None:
            return EnvironmentData()
        missing = (await self._references.pull_secrets(pod)).missing
        if missing:
            self._recorder.pod(
                pod,
                EventType.WARNING,
                "FailedToRetrieveImagePullSecret",
                f"Unable to retrieve some image pull secrets ({', '.join(missing)}); attempting "
                "to pull the image may not succeed.",
            )
        try:
            return await self._references.environment(pod, is_static=is_static(pod))
        except ObjectError as error:
            raise PreparationError("Failed", f"Error: {error}") from error

    async def unmount(self, pod: Pod) -> None:
        """Unmount the pod's volumes and remove what they kept. Raises PreparationError."""
        try:
            await self._volumes.tear_down(pod.metadata.uid)
        except (VolumeBusy, OSError) as error:
            raise PreparationError("FailedKillPod", str(error)) from error
        if self._references is not None:
            self._references.unregister(pod.metadata.uid)

    async def remove(self, pod: Pod) -> None:
        """Remove the pod's record, its folders and, last of all, its logs.

        Raises PreparationError.
        """
        await self._allocations.forget(pod.metadata.uid)
        try:
            await self._volumes.remove_pod(pod.metadata.uid)
            await trio.to_thread.run_sync(
                partial(remove_pod_logs, pod.metadata.uid, self._node), limiter=self._file_limiter
            )
        except (VolumeBusy, OSError) as error:
            raise PreparationError("FailedKillPod", str(error)) from error


class PullSecrets:
    """The keyrings of pods: their pull secrets."""

    def __init__(self, references: References) -> None:
        self._references = references

    async def keyring(self, pod: Pod) -> Keyring:
        """What the pod's pull secrets hold, as far as they are there."""
        return keyring_of((await self._references.pull_secrets(pod)).secrets)


class PodSubPaths:
    """Sub-paths of volumes, as the runtime part wants them."""

    def __init__(self, volumes: Volumes) -> None:
        self._volumes = volumes

    async def bind(
        self,
        pod: Pod,
        container: Container,
        position: int,
        volume: PreparedVolume,
        sub_path: str,
    ) -> str:
        """The path on the node of a sub-path. Raises ConfigError."""
        name = container.volume_mounts[position].name
        mounted = MountedVolume(name=name, host_path=volume.host_path)
        try:
            return await self._volumes.bind_sub_path(
                pod, mounted, container.name, position, sub_path
            )
        except VolumeError as error:
            raise ConfigError(
                f'failed to prepare subPath for volumeMount "{name}" of container '
                f'"{container.name}": {error.why}'
            ) from error


class PodCgroups:
    """Cgroups of pods, and the weights of the QoS classes, which follow the burstable pods."""

    def __init__(self, cgroups: Cgroups, active: Callable[[], Iterable[Pod]]) -> None:
        self._cgroups = cgroups
        self._active = active
        self._weighed: set[str] = set()

    async def ensure(self, pod: Pod) -> None:
        """Make the pod's cgroup. Raises PreparationError."""
        try:
            await self._cgroups.ensure(pod)
            if qos_class(pod) is QosClass.BURSTABLE and pod.metadata.uid not in self._weighed:
                self._weighed.add(pod.metadata.uid)
                await self._cgroups.update_qos(self._active())
        except (OSError, SystemdError) as error:
            message = f"unable to ensure pod container exists: {error}"
            raise PreparationError("FailedCreatePodContainer", message) from error

    async def remove(self, uid: str) -> None:
        """Remove the pod's cgroup with all that is left in it. Raises PreparationError."""
        try:
            await self._cgroups.remove(uid)
            if uid in self._weighed:
                self._weighed.discard(uid)
                await self._cgroups.update_qos(self._active())
        except (OSError, SystemdError, CgroupBusy) as error:
            raise PreparationError("FailedKillPod", str(error)) from error

    async def list_pod_uids(self) -> Iterable[str]:
        """The UIDs of all pods that have a cgroup."""
        return await self._cgroups.list_pod_uids()


class NoCgroups:
    """For a runtime without a kernel: pods have no cgroups."""

    async def ensure(self, pod: Pod) -> None:
        """Nothing to make."""

    async def remove(self, uid: str) -> None:
        """Nothing to remove."""

    async def list_pod_uids(self) -> Iterable[str]:
        """None has one."""
        return ()


class HousekeepingPlaces:
    """Where something of a pod may be left: one question for each place."""

    def __init__(
        self,
        cache: RuntimeCache,
        volumes: Volumes,
        cgroups: PodCgroups | NoCgroups,
        node: NodeFacts,
        file_limiter: trio.CapacityLimiter,
        allocations: Allocations,
    ) -> None:
        self._cache = cache
        self._volumes = volumes
        self._cgroups = cgroups
        self._node = node
        self._file_limiter = file_limiter
        self._allocations = allocations

    async def in_runtime(self) -> Iterable[Found]:
        """Pods with sandboxes or containers, as the last relist or look showed them."""
        return [
            Found(
                uid=pod.uid,
                namespace=pod.namespace,
                name=pod.name,
                leftovers=frozenset({Leftover.RUNTIME}),
            )
            for pod in self._cache.pods()
        ]

    async def in_folders(self) -> Iterable[Found]:
        """Pods with a folder."""
        return _found(await self._volumes.pods_on_disk(), Leftover.FOLDER)

    async def in_cgroups(self) -> Iterable[Found]:
        """Pods with a cgroup."""
        return _found(await self._cgroups.list_pod_uids(), Leftover.CGROUP)

    async def in_records(self) -> Iterable[Found]:
        """Pods with a record of what they were allocated."""
        return _found(self._allocations.uids(), Leftover.RECORD)

    async def in_logs(self) -> Iterable[Found]:
        """Pods with a log folder."""
        logs = await trio.to_thread.run_sync(
            partial(pods_with_logs, self._node), limiter=self._file_limiter
        )
        return [
            Found(uid=uid, namespace=namespace, name=name, leftovers=frozenset({Leftover.LOGS}))
            for namespace, name, uid in logs
        ]


def _found(uids: Iterable[str], leftover: Leftover) -> list[Found]:
    return [Found(uid=uid, leftovers=frozenset({leftover})) for uid in uids]


def _for_runtime(volume: MountedVolume) -> PreparedVolume:
    return PreparedVolume(
        host_path=volume.host_path, read_only=volume.read_only, relabel=volume.selinux_relabel
    )


def adoptable_uid(running: Iterable[ObservedPod], pod: Pod, source: Source) -> str | None:
    """The UID of a running pod that is this static pod: same name, source and containers."""
    wanted = {container.name: container_hash(container) for container in pod.spec.containers}
    for candidate in running:
        sandbox = candidate.ready_sandbox
        if sandbox is None or (candidate.namespace, candidate.name) != (
            pod.metadata.namespace,
            pod.metadata.name,
        ):
            continue
        if sandbox.annotations.get(CONFIG_SOURCE) != source:
            continue
        found = {c.name: c.hash for c in reversed(candidate.containers) if c.name in wanted}
        if found and all(wanted[name] == hash_ for name, hash_ in found.items()):
            return candidate.uid
    return None
