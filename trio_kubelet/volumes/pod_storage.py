"""Volumes, folders, logs and configuration data of pods, as their tasks and containers want them.

What a pod's containers are made with is got ready side by side: volumes are mounted while the
objects for variables are fetched.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import trio
from attrs import frozen

from trio_kubelet.errors import ConfigError, PodUnfitError, PreparationError
from trio_kubelet.k8s import (
    ConfigMapProjection,
    ConfigMapVolumeSource,
    Container,
    Pod,
    ProjectedVolumeSource,
    SecretProjection,
    SecretVolumeSource,
    StorageMedium,
    Volume,
)
from trio_kubelet.pod_source import is_static
from trio_kubelet.references import (
    EnvironmentData,
    NoReferences,
    ObjectError,
    ObjectNotFoundError,
    References,
)
from trio_kubelet.references.object_references import ROOT_CERTIFICATES
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.config.container_config import PodInputs
from trio_kubelet.runtime.config.environment import EnvironmentSources
from trio_kubelet.runtime.config.mounts import PreparedVolume
from trio_kubelet.runtime.node_facts import NodeFacts
from trio_kubelet.runtime.pod_files import pods_with_logs, remove_pod_logs
from trio_kubelet.runtime.user_namespaces import PodIdRanges
from trio_kubelet.tasks.concurrency import both
from trio_kubelet.tasks.fair_limiter import ALL_PODS, FairLimiter
from trio_kubelet.telemetry import EventRecorder, EventType
from trio_kubelet.volumes.env_file import EnvFiles
from trio_kubelet.volumes.plugin import MountedVolume, VolumeBusy, VolumeError, VolumesNotReady
from trio_kubelet.volumes.volumes import Volumes

NODE_FULL = "VolumeAttachmentLimitExceeded"
"""The reason of a pod's failure for whose volumes the node has no room (KEP-4876)."""
TOLD_VOLUMES = 10
"""Volumes of a pod that failed and have an event of their own, beside the last."""
MOST_NAMED = 16
"""Objects that are looked for before a sandbox is made; with more it waits for the volumes."""


@frozen
class NamedObject:
    """A config map, or a secret, that a volume is made of, and the keys that it must have."""

    name: str
    keys: Sequence[str]
    is_secret: bool = False
    optional: bool = False


@frozen
class PodStorage:
    """The things of all pods on the disks of the node."""

    _volumes: Volumes
    _references: References | NoReferences
    _recorder: EventRecorder
    _node: NodeFacts
    _files: FairLimiter
    _id_ranges: PodIdRanges | None = None

    async def prepare(self, pod: Pod) -> PodInputs:
        """Make folders, mount volumes, fetch for variables.

        Raises PreparationError, PodUnfitError.
        """
        self._references.register(pod)
        mounted, data = await both(partial(self._mount, pod), partial(self._fetch, pod))
        return PodInputs(
            volumes={name: _for_runtime(volume) for name, volume in mounted.items()},
            sources=EnvironmentSources(
                config_maps=data.config_maps,
                secrets=data.secrets,
                problems=data.problems,
                env_file_reader=lambda: EnvFiles(mounted).variable,
            ),
            services=data.services,
        )

    async def volumes_are_certain(self, pod: Pod) -> bool:
        """True if nothing that the pod's volumes are made of is missing.

        Waits for the first answers about the objects that they name.
        """
        named = objects_of_volumes(pod)
        if named is None or len(named) > MOST_NAMED:
            return False
        self._references.register(pod)
        for each in named:
            if not await self._is_there(pod.metadata.namespace, each):
                return False
        return True

    async def _is_there(self, namespace: str, named: NamedObject) -> bool:
        """True if an object has all keys that a volume names, or need not have them."""
        try:
            if named.is_secret:
                has = [(await self._references.secret(namespace, named.name)).data.keys()]
            else:
                found = await self._references.config_map(namespace, named.name)
                has = [found.data.keys(), found.binary_data.keys()]
        except ObjectNotFoundError:
            return named.optional
        except ObjectError:
            return False
        return named.optional or all(any(key in keys for keys in has) for key in named.keys)

    async def bind(
        self, pod: Pod, container: Container, position: int, volume: PreparedVolume, sub_path: str
    ) -> str:
        """The path on the node of a sub-path, for one mount of a container. Raises ConfigError."""
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

    async def unmount(self, pod: Pod) -> None:
        """Unmount the pod's volumes and remove what they kept. Raises PreparationError."""
        try:
            await self._volumes.tear_down(pod.metadata.uid, pod.metadata.namespace)
        except (VolumeBusy, OSError) as error:
            raise PreparationError("FailedKillPod", str(error)) from error
        self._references.unregister(pod.metadata.uid)

    async def remove(self, pod: Pod) -> None:
        """Remove the pod's folders and, last of all, its logs; its range of ids goes with them.

        Raises PreparationError.
        """
        uid, namespace = pod.metadata.uid, pod.metadata.namespace
        try:
            await self._volumes.remove_pod(uid, namespace)
            remove_logs = partial(remove_pod_logs, uid, self._node)
            await self._files.share(namespace, uid).run_sync(remove_logs)
        except (VolumeBusy, OSError) as error:
            raise PreparationError("FailedKillPod", str(error)) from error
        if self._id_ranges is not None:
            self._id_ranges.release(uid)

    async def pods_with_logs(self) -> Iterable[tuple[str, str, str]]:
        """Namespace, name and UID of each pod that has a log folder."""
        look = partial(pods_with_logs, self._node)
        return await self._files.share(ALL_PODS).run_sync(look)

    async def _mount(self, pod: Pod) -> Mapping[str, MountedVolume]:
        try:
            mounted = await self._volumes.prepare(pod)
        except VolumesNotReady as error:
            if error.is_node_full:
                raise PodUnfitError(NODE_FULL, str(error)) from error
            raise self._told(pod, error) from error
        except OSError as error:
            message = f"error making pod data directories: {error}"
            raise PreparationError("Failed", message) from error
        for volume in mounted.values():
            if volume.outdated is not None:
                self._recorder.pod(pod, EventType.WARNING, "FailedMount", str(volume.outdated))
        return mounted

    def _told(self, pod: Pod, error: VolumesNotReady) -> PreparationError:
        """Record events of volumes that failed, all but the last, which is the pod's error."""
        retry_seconds = None
        if error.retry_at is not None:
            retry_seconds = max(0.0, error.retry_at - trio.current_time())
        if not error.failures:
            return PreparationError(
                "FailedMount", str(error), is_told=True, retry_seconds=retry_seconds
            )
        *others, (reason, message) = error.failures
        for each in others[:TOLD_VOLUMES]:
            self._recorder.pod(pod, EventType.WARNING, *each)
        more = len(others) - TOLD_VOLUMES
        words = f"{message}; {more} more volumes failed" if more > 0 else message
        return PreparationError(reason, words, retry_seconds=retry_seconds)

    async def _fetch(self, pod: Pod) -> EnvironmentData:
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


def _for_runtime(volume: MountedVolume) -> PreparedVolume:
    name = volume.image
    return PreparedVolume(
        host_path=volume.host_path,
        device=volume.device,
        read_only=volume.read_only,
        relabel=volume.selinux_relabel,
        image=cri.ImageSpec(image=name, user_specified_image=name) if name else None,
    )


def objects_of_volumes(pod: Pod) -> Sequence[NamedObject] | None:
    """The config maps and secrets that volumes are made of; None if more of them may be missing.

    What every pod is given is there.
    """
    named: list[NamedObject] = []
    for volume in pod.spec.volumes:
        of_volume = _objects_of(volume)
        if of_volume is None:
            return None
        named += of_volume
    return named


def _objects_of(volume: Volume) -> Sequence[NamedObject] | None:
    if volume.empty_dir is not None:
        is_plain = volume.empty_dir.medium in (StorageMedium.DEFAULT, StorageMedium.MEMORY)
        return () if is_plain else None
    if volume.config_map is not None:
        return [_config_map(volume.config_map)]
    if volume.secret is not None:
        return [_secret(volume.secret, volume.secret.secret_name)]
    if volume.projected is not None:
        return _objects_projected(volume.projected)
    return None if volume.downward_api is None else ()


def _objects_projected(projected: ProjectedVolumeSource) -> Sequence[NamedObject] | None:
    named = []
    for source in projected.sources:
        if source.config_map is not None:
            if source.config_map.name != ROOT_CERTIFICATES:
                named.append(_config_map(source.config_map))
        elif source.secret is not None:
            named.append(_secret(source.secret, source.secret.name))
        elif source.downward_api is None and source.service_account_token is None:
            return None
    return named


def _config_map(source: ConfigMapVolumeSource | ConfigMapProjection) -> NamedObject:
    keys = [item.key for item in source.items]
    return NamedObject(source.name, keys, optional=bool(source.optional))


def _secret(source: SecretVolumeSource | SecretProjection, name: str) -> NamedObject:
    keys = [item.key for item in source.items]
    return NamedObject(name, keys, is_secret=True, optional=bool(source.optional))
