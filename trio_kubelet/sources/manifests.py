"""Manifests: text from a file or a URL, and the static pods it holds.

`ManifestReader.read` turns bytes into pods that are ready but for their UID, and into problems:
it never raises for what is in the bytes. `resolve` gives the UIDs and decides what goes on when
a manifest has become bad: pods that it can no longer show keep running as they were last seen
good. Both are pure. A document is judged alone, so that one bad pod does not hide its neighbours.
A static pod that runs already under a name of an earlier kubelet's keeps its UID.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import structlog
from attrs import evolve, field, frozen

from trio_kubelet.foreign_text import without_passwords
from trio_kubelet.k8s import Pod
from trio_kubelet.k8s.errors import ErrorKind, FieldError
from trio_kubelet.pod_source import CONFIG_SOURCE, Source
from trio_kubelet.runtime.config.container_hash import container_hash
from trio_kubelet.runtime.observed import ObservedPod
from trio_kubelet.sources.static_pods import (
    InvalidManifest,
    checked_pod,
    is_manifest_uid,
    load_pod_documents,
    manifest_uid,
    with_uid,
)

log = structlog.get_logger("sources")

MAX_MANIFEST_BYTES = 10 << 20

_SMALLEST = b"""
apiVersion: v1
kind: Pod
metadata: {name: p}
spec: {containers: [{name: c, image: i}]}
"""

Adopt = Callable[[Pod, Source], str | None]
"""Asks for the UID of a running sandbox that this pod may take over, by name and containers.

Called in a thread.
"""


@frozen(kw_only=True)
class ManifestPod:
    """One static pod of a manifest.

    `pod` is complete except for its UID; `manifest_uid` is the hash over node, source and
    manifest; `uid` is what the pod is called in the end, "" before `resolve`.
    """

    document: Mapping[str, object]
    pod: Pod
    manifest_uid: str
    uid: str = ""

    @property
    def full_name(self) -> str:
        """`<namespace>/<name>`."""
        return self.pod.metadata.key


@frozen(kw_only=True)
class Manifest:
    """The content of one origin (a path or a URL) when it was read.

    `digest` is of the bytes, so that the same content is not reported twice.
    """

    origin: str
    digest: str
    pods: tuple[ManifestPod, ...] = ()
    problems: tuple[str, ...] = ()


@frozen(kw_only=True)
class ResolvedManifests:
    """The pods of some manifests: by origin, as pods, and what is wrong with them."""

    kept: Mapping[str, tuple[ManifestPod, ...]] = field(factory=dict)
    pods: tuple[Pod, ...] = ()
    problems: Mapping[str, tuple[str, ...]] = field(factory=dict)


@frozen(kw_only=True)
class ManifestReader:
    """Reads manifests of one source on one node."""

    source: Source
    node_name: str

    def read(self, origin: str, data: bytes) -> Manifest:
        """Return the pods and the problems of a manifest. Never raises for what is in it."""
        digest = hashlib.sha256(data).hexdigest()
        if len(data) > MAX_MANIFEST_BYTES:
            problem = f"is larger than {MAX_MANIFEST_BYTES >> 20} MiB"
            return Manifest(origin=origin, digest=digest, problems=(problem,))
        pods: list[ManifestPod] = []
        problems: list[str] = []
        try:
            documents = load_pod_documents(data)
            for number, document in enumerate(documents, 1):
                where = f"document {number}: " if len(documents) > 1 else ""
                try:
                    pods.append(self.pod(origin, document))
                except InvalidManifest as error:
                    problems.extend(where + problem for problem in error.problems)
                except Exception as error:  # a bug that one pod brings out must not hide the others
                    log.exception("manifest validation failed", file=without_passwords(origin))
                    problems.append(f"{where}cannot be judged: {type(error).__name__}: {error}")
        except InvalidManifest as error:
            problems.extend(error.problems)
        except Exception as error:
            log.exception("manifest validation failed", file=without_passwords(origin))
            problems.append(f"cannot be judged: {type(error).__name__}: {error}")
        return Manifest(origin=origin, digest=digest, pods=tuple(pods), problems=tuple(problems))

    def warm_up(self) -> None:
        """Read a manifest once for nothing.

        The codec makes its functions on the first use, which takes a quarter of a second: that
        is better spent before the first pod than on it.
        """
        self.read("", _SMALLEST)

    def pod(self, origin: str, document: Mapping[str, object]) -> ManifestPod:
        """Return the static pod of one document; raises InvalidManifest."""
        return ManifestPod(
            document=document,
            pod=checked_pod(document, self.source, self.node_name),
            manifest_uid=manifest_uid(document, self.source, origin, self.node_name),
        )

    def resolve(
        self,
        manifests: Sequence[Manifest],
        kept: Mapping[str, tuple[ManifestPod, ...]],
        adopt: Adopt,
        *,
        kept_by_earlier_run: bool = False,
    ) -> ResolvedManifests:
        """Return what should run, given what was last seen good and still stands.

        Of two pods with the same full name or UID the one of the first manifest wins; the other is
        reported. `kept_by_earlier_run`: another kubelet may have had the node since, and given the
        pods UIDs of its own; what it runs now counts for more than what was kept.
        """
        problems = {m.origin: list(m.problems) for m in manifests}
        resolved: dict[str, tuple[ManifestPod, ...]] = {}
        pods: list[Pod] = []
        names: dict[str, str] = {}
        uids: dict[str, str] = {}
        for manifest in manifests:
            before = kept.get(manifest.origin, ())
            running = self._named(manifest, before, adopt, kept_by_earlier_run)
            resolved[manifest.origin] = running
            for each in running:
                double = _duplicate(each, names, uids)
                if double is not None:
                    problems[manifest.origin].append(str(double))
                    continue
                names[each.full_name] = uids[each.uid] = manifest.origin
                pods.append(with_uid(each.pod, each.uid))
        return ResolvedManifests(
            kept=resolved,
            pods=tuple(pods),
            problems={origin: tuple(found) for origin, found in problems.items() if found},
        )

    def _named(
        self,
        manifest: Manifest,
        kept: tuple[ManifestPod, ...],
        adopt: Adopt,
        kept_by_earlier_run: bool,
    ) -> tuple[ManifestPod, ...]:
        wanted = [*manifest.pods]
        if manifest.problems:
            shown = {each.full_name for each in manifest.pods}
            wanted += [each for each in kept if each.full_name not in shown]
        known: dict[str, dict[str, str]] = {}
        for each in kept:
            known.setdefault(each.full_name, {})[each.manifest_uid] = each.uid
        return tuple(
            evolve(
                each, uid=self._uid(each, known.get(each.full_name, {}), adopt, kept_by_earlier_run)
            )
            for each in wanted
        )

    def _uid(
        self,
        each: ManifestPod,
        known: Mapping[str, str],
        adopt: Adopt,
        kept_by_earlier_run: bool,
    ) -> str:
        """The UID of a pod; `known` are those of its name, by the UIDs of their manifests."""
        if each.pod.metadata.uid:
            return each.pod.metadata.uid
        if not known or kept_by_earlier_run:
            adopted = _adopted(each.pod, self.source, adopt)
            # A UID of our own making, or one that was kept, belongs to a text that is known.
            if adopted and not is_manifest_uid(adopted) and adopted not in known.values():
                return adopted
        return known.get(each.manifest_uid, each.manifest_uid)


def _adopted(pod: Pod, source: Source, adopt: Adopt) -> str | None:
    try:
        return adopt(pod, source)
    except Exception:  # a bug that one pod brings out must not hide the others
        log.exception("static pod UID adoption failed", pod=pod.metadata.key)
        return None


def _duplicate(
    pod: ManifestPod, names: Mapping[str, str], uids: Mapping[str, str]
) -> FieldError | None:
    for field_name, value, taken in (
        ("metadata.name", pod.full_name, names),
        ("metadata.uid", pod.uid, uids),
    ):
        if value in taken:
            detail = f"already used in {taken[value]}"
            return FieldError(field_name, ErrorKind.DUPLICATE, value, detail)
    return None


def adopt_running(running: Iterable[ObservedPod]) -> Adopt:
    """Adopt the pods that run now."""
    by_name: dict[str, list[ObservedPod]] = {}
    for each in running:
        by_name.setdefault(f"{each.namespace}/{each.name}", []).append(each)
    return partial(_adoptable_uid, by_name)


def _adoptable_uid(
    running: Mapping[str, Sequence[ObservedPod]], pod: Pod, source: Source
) -> str | None:
    """The UID of a running pod that is this static pod: same name, source and containers."""
    wanted = {container.name: container for container in pod.spec.containers}
    for candidate in running.get(pod.metadata.key, ()):
        sandbox = candidate.ready_sandbox
        if sandbox is None or sandbox.annotations.get(CONFIG_SOURCE) != source:
            continue
        found = {c.name: c.hash for c in reversed(candidate.containers) if c.name in wanted}
        # One hash takes a tenth of a millisecond: only those that are compared are made.
        if found and all(container_hash(wanted[name]) == hash_ for name, hash_ in found.items()):
            return candidate.uid
    return None
