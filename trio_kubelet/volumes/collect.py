"""What volumes of configuration data hold, collected from the API's objects and the pod itself.

The sources of a projected volume are asked for side by side, and later ones win where paths
meet. All that is missing is told at once. An optional source that is not there is empty.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import trio
from attrs import frozen

from trio_kubelet.errors import aggregated
from trio_kubelet.k8s import (
    ConfigMap,
    ConfigMapProjection,
    ConfigMapVolumeSource,
    DownwardAPIProjection,
    DownwardAPIVolumeSource,
    Pod,
    ProjectedVolumeSource,
    Quantity,
    Secret,
    SecretProjection,
    SecretVolumeSource,
    ServiceAccountTokenProjection,
    Volume,
    VolumeProjection,
)
from trio_kubelet.references import NoReferences, ObjectError, ObjectNotFoundError, References
from trio_kubelet.volumes.downward import downward_payload
from trio_kubelet.volumes.payload import (
    DEFAULT_MODE,
    PRIVATE_MODE,
    Payload,
    VolumeFile,
    common_user,
    config_map_payload,
    for_group,
    fs_group,
    secret_payload,
    with_checked_paths,
)

T = TypeVar("T")


@frozen(kw_only=True)
class Collector:
    """Collects payloads. `allocatable` is what the node has, for limits that are not set."""

    data: References | NoReferences
    allocatable: Callable[[], Mapping[str, Quantity]]

    async def collect(self, pod: Pod, volume: Volume) -> Payload:
        """Return the files of one volume, owned as the pod wants it.

        Raises ObjectError (of a missing object), ValueError (of a missing key, a bad path).
        """
        payload = await self._payload(pod, volume)
        return for_group(with_checked_paths(payload), fs_group(pod))

    async def _payload(self, pod: Pod, volume: Volume) -> Payload:
        if volume.config_map is not None:
            return await self._config_map(
                pod, volume.config_map, volume.config_map.name, _mode(volume.config_map)
            )
        if volume.secret is not None:
            return await self._secret(
                pod, volume.secret, volume.secret.secret_name, _mode(volume.secret)
            )
        if volume.downward_api is not None:
            return self._downward(pod, volume.downward_api, _mode(volume.downward_api))
        return await self._projected(pod, volume.projected or ProjectedVolumeSource())

    async def _config_map(
        self,
        pod: Pod,
        source: ConfigMapVolumeSource | ConfigMapProjection,
        name: str,
        mode: int,
    ) -> Payload:
        optional = bool(source.optional)
        wanted = self.data.config_map(pod.metadata.namespace, name)
        found = await _unless_missing(wanted, optional, ConfigMap())
        return config_map_payload(found, source.items, mode, optional=optional)

    async def _secret(
        self, pod: Pod, source: SecretVolumeSource | SecretProjection, name: str, mode: int
    ) -> Payload:
        optional = bool(source.optional)
        wanted = self.data.secret(pod.metadata.namespace, name)
        found = await _unless_missing(wanted, optional, Secret())
        return secret_payload(found, source.items, mode, optional=optional)

    def _downward(
        self, pod: Pod, source: DownwardAPIVolumeSource | DownwardAPIProjection, mode: int
    ) -> Payload:
        return downward_payload(pod, source.items, mode, self.allocatable())

    async def _projected(self, pod: Pod, source: ProjectedVolumeSource) -> Payload:
        mode = _mode(source)
        collected: dict[int, Payload] = {}
        problems: dict[int, Exception] = {}

        async def collect_one(position: int, projection: VolumeProjection) -> None:
            try:
                collected[position] = await self._projection(pod, projection, mode)
            except (ObjectError, ValueError) as error:
                problems[position] = error

        async with trio.open_nursery() as nursery:
            for position, projection in enumerate(source.sources):
                nursery.start_soon(collect_one, position, projection)
        if len(problems) == 1:
            raise next(iter(problems.values()))
        if problems:
            raise ObjectError(aggregated(str(problems[position]) for position in sorted(problems)))
        files: dict[str, VolumeFile] = {}
        for position in sorted(collected):
            files.update(collected[position])
        return files

    async def _projection(self, pod: Pod, projection: VolumeProjection, mode: int) -> Payload:
        if projection.config_map is not None:
            source = projection.config_map
            return await self._config_map(pod, source, source.name, mode)
        if projection.secret is not None:
            secret = projection.secret
            return await self._secret(pod, secret, secret.name, mode)
        if projection.downward_api is not None:
            return self._downward(pod, projection.downward_api, mode)
        if projection.service_account_token is not None:
            return await self._token(pod, projection.service_account_token, mode)
        if projection.cluster_trust_bundle is not None:
            bundle = projection.cluster_trust_bundle
            anchors = await self.data.trust_anchors(bundle)
            return {bundle.path: _private_file(pod, anchors, mode)}
        raise ObjectError("podCertificate sources are not supported yet")

    async def _token(self, pod: Pod, source: ServiceAccountTokenProjection, mode: int) -> Payload:
        token = await self.data.token(pod, source.audience, source.expiration_seconds)
        return {source.path: _private_file(pod, token.encode(), mode)}


def _private_file(pod: Pod, content: bytes, mode: int) -> VolumeFile:
    """A file that only the pod's user or group needs to read, where it has one of its own."""
    user, group = common_user(pod), fs_group(pod)
    has_own = user is not None or group is not None
    return VolumeFile(content=content, mode=PRIVATE_MODE if has_own else mode, user=user)


def _mode(
    source: (
        ConfigMapVolumeSource | SecretVolumeSource | DownwardAPIVolumeSource | ProjectedVolumeSource
    ),
) -> int:
    return DEFAULT_MODE if source.default_mode is None else source.default_mode


async def _unless_missing(wanted: Awaitable[T], optional: bool, empty: T) -> T:
    try:
        return await wanted
    except ObjectNotFoundError:
        if optional:
            return empty
        raise
