"""The content of volumes of configuration data, collected from API objects and the pod itself.

The sources of a projected volume are asked for side by side, a few at a time, and later ones win
where paths meet. All that is missing is told at once. An optional source that is not there is
empty. The files themselves are made in a thread: one object may be named again and again.

Fields of the pod and amounts of its resources (downwardAPI) follow the rules of environment
variables, and two more: labels and annotations may be asked for as a whole, and are then lines of
`key="value"`, sorted, with the value quoted as Go does it.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from attrs import frozen

from trio_kubelet.errors import ConfigError, aggregated
from trio_kubelet.k8s import (
    ConfigMap,
    ConfigMapProjection,
    ConfigMapVolumeSource,
    Container,
    DownwardAPIProjection,
    DownwardAPIVolumeFile,
    DownwardAPIVolumeSource,
    Pod,
    ProjectedVolumeSource,
    Quantity,
    Secret,
    SecretProjection,
    SecretVolumeSource,
    Volume,
    VolumeProjection,
)
from trio_kubelet.references import NoReferences, ObjectError, ObjectNotFoundError, References
from trio_kubelet.runtime.config.field_refs import PodAddresses, pod_field, resource_field
from trio_kubelet.tasks.concurrency import run_for_each
from trio_kubelet.volumes.payload import (
    DEFAULT_MODE,
    PRIVATE_MODE,
    ObjectSource,
    Payload,
    PayloadBuilder,
    VolumeFile,
    VolumeTooLargeError,
    add_config_map,
    add_secret,
    common_user,
    for_group,
    fs_group,
    with_checked_paths,
)

T = TypeVar("T")

SOURCES_AT_ONCE = 8
"""Of one projected volume, which may have thousands."""

AddFiles = Callable[[PayloadBuilder], None]
"""Adds the files of one source, of which all is there. Raises ValueError; may be much work."""

_ESCAPES = {
    "\a": r"\a",
    "\b": r"\b",
    "\f": r"\f",
    "\n": r"\n",
    "\r": r"\r",
    "\t": r"\t",
    "\v": r"\v",
    "\\": r"\\",
    '"': r"\"",
}
_LONGEST_SHORT_ESCAPE = 0x7F
_LONGEST_ESCAPE = 0xFFFF


@frozen(kw_only=True)
class Collector:
    """Collects payloads. `allocatable` is what the node has, for limits that are not set."""

    data: References | NoReferences
    allocatable: Callable[[], Mapping[str, Quantity]]

    async def collect(self, pod: Pod, volume: Volume) -> Callable[[], Payload]:
        """Get all that the files of one volume are made of; returns the work that makes them.

        Raises ObjectError (of a missing object), VolumeTooLargeError (of too many sources, of which
        none is fetched); the work, which is for a thread, raises ValueError (of a missing key, a
        bad path, too large a volume).
        """
        if volume.projected is not None:
            PayloadBuilder().expect(len(volume.projected.sources))
        sources = await self._sources(pod, volume)

        def make() -> Payload:
            builder = PayloadBuilder()
            _add_all(builder, sources)
            return for_group(with_checked_paths(builder.files), fs_group(pod))

        return make

    async def _sources(self, pod: Pod, volume: Volume) -> Sequence[AddFiles]:
        if volume.config_map is not None:
            source = volume.config_map
            return [await self._config_map(pod, source, source.name, _mode(source))]
        if volume.secret is not None:
            secret = volume.secret
            return [await self._secret(pod, secret, secret.secret_name, _mode(secret))]
        if volume.downward_api is not None:
            return [self._downward(pod, volume.downward_api, _mode(volume.downward_api))]
        return await self._projected(pod, volume.projected or ProjectedVolumeSource())

    async def _config_map(
        self,
        pod: Pod,
        source: ConfigMapVolumeSource | ConfigMapProjection,
        name: str,
        mode: int,
    ) -> AddFiles:
        wanted = self.data.config_map(pod.metadata.namespace, name)
        found = await _unless_missing(wanted, bool(source.optional), ConfigMap())
        return partial(add_config_map, found=found, source=_object_source(source, mode))

    async def _secret(
        self, pod: Pod, source: SecretVolumeSource | SecretProjection, name: str, mode: int
    ) -> AddFiles:
        wanted = self.data.secret(pod.metadata.namespace, name)
        found = await _unless_missing(wanted, bool(source.optional), Secret())
        return partial(add_secret, found=found, source=_object_source(source, mode))

    def _downward(
        self, pod: Pod, source: DownwardAPIVolumeSource | DownwardAPIProjection, mode: int
    ) -> AddFiles:
        return partial(
            add_downward_files,
            pod=pod,
            items=source.items,
            default_mode=mode,
            allocatable=self.allocatable(),
        )

    async def _projected(self, pod: Pod, source: ProjectedVolumeSource) -> Sequence[AddFiles]:
        mode = _mode(source)
        collected: dict[int, AddFiles] = {}

        async def collect_one(numbered: tuple[int, VolumeProjection]) -> None:
            position, projection = numbered
            try:
                collected[position] = await self._projection(pod, projection, mode)
            except (ObjectError, ValueError) as error:
                collected[position] = partial(_fail, str(error))  # Told with what else is wrong.

        at_once = min(len(source.sources), SOURCES_AT_ONCE)
        await run_for_each(enumerate(source.sources), collect_one, at_once)
        return [collected[position] for position in sorted(collected)]

    async def _projection(self, pod: Pod, projection: VolumeProjection, mode: int) -> AddFiles:
        if projection.config_map is not None:
            source = projection.config_map
            return await self._config_map(pod, source, source.name, mode)
        if projection.secret is not None:
            secret = projection.secret
            return await self._secret(pod, secret, secret.name, mode)
        if projection.downward_api is not None:
            return self._downward(pod, projection.downward_api, mode)
        if projection.service_account_token is not None:
            wanted = projection.service_account_token
            token = await self.data.token(pod, wanted.audience, wanted.expiration_seconds)
            return _one_file(wanted.path, _private_file(pod, token.encode(), mode))
        if projection.cluster_trust_bundle is not None:
            bundle = projection.cluster_trust_bundle
            anchors = await self.data.trust_anchors(pod, bundle)
            return _one_file(bundle.path, _private_file(pod, anchors, mode))
        raise ObjectError("podCertificate sources are not supported")


def _add_all(builder: PayloadBuilder, sources: Iterable[AddFiles]) -> None:
    """Add the files of all sources. Raises ObjectError with the words of all that have failed."""
    problems: list[str] = []
    for add in sources:
        try:
            add(builder)
        except VolumeTooLargeError:
            raise
        except (ObjectError, ValueError) as error:
            problems.append(str(error))
    if problems:
        raise ObjectError(aggregated(problems))


def _fail(why: str, _builder: PayloadBuilder) -> None:
    raise ObjectError(why)


def _one_file(path: str, file: VolumeFile) -> AddFiles:
    return lambda builder: builder.add(path, file)


def _object_source(
    source: ConfigMapVolumeSource | ConfigMapProjection | SecretVolumeSource | SecretProjection,
    mode: int,
) -> ObjectSource:
    return ObjectSource(items=source.items, mode=mode, optional=bool(source.optional))


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


def add_downward_files(
    files: PayloadBuilder,
    pod: Pod,
    items: tuple[DownwardAPIVolumeFile, ...],
    default_mode: int,
    allocatable: Mapping[str, Quantity],
) -> None:
    """Add the files of a downward API volume. Raises ValueError, of all items at once."""
    problems: list[str] = []
    made: dict[str, bytes] = {}
    """By field; one may be asked for again and again."""
    for item in items:
        field = item.field_ref.field_path if item.field_ref is not None else ""
        try:
            if not field or field not in made:
                text = _text(pod, item, allocatable)
                made[field] = text.encode("utf-8", "surrogateescape")
        except ConfigError as error:
            problems.append(error.message)
            continue
        mode = default_mode if item.mode is None else item.mode
        files.add(item.path, VolumeFile(content=made[field], mode=mode))
    if problems:
        raise ValueError(aggregated(problems))


def _text(pod: Pod, item: DownwardAPIVolumeFile, allocatable: Mapping[str, Quantity]) -> str:
    if item.field_ref is not None:
        path = item.field_ref.field_path
        if path == "metadata.labels":
            return map_text(pod.metadata.labels)
        if path == "metadata.annotations":
            return map_text(pod.metadata.annotations)
        return pod_field(pod, path, PodAddresses())
    if item.resource_field_ref is not None:
        return resource_field(pod, Container(), item.resource_field_ref, allocatable)
    return ""


def map_text(values: Mapping[str, str]) -> str:
    """Return labels or annotations as lines of `key="value"`."""
    return "\n".join(f"{key}={go_quoted(value)}" for key, value in sorted(values.items()))


def go_quoted(text: str) -> str:
    """Return a text as Go's `%q` writes it."""
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    code = ord(character)
    if code <= _LONGEST_SHORT_ESCAPE:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= _LONGEST_ESCAPE else f"\\U{code:08x}"
