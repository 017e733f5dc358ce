"""The last good state of each manifest, on disk: what a static pod goes on from.

One file an origin under `<root>/static-pods/`, as JSON: the documents as they were last accepted,
with the UIDs that their pods have. It outlives the agent, so that a manifest that is bad at the
next start does not stop its pod, and so that a pod that was adopted keeps its UID. A record goes
when its manifest goes. Manifests may hold secrets in their environment: the folder is 0700.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

import structlog
from attrs import evolve, frozen

from trio_kubelet.kernel.whole_files import make_folder, write_all_whole
from trio_kubelet.sources.manifests import ManifestPod, ManifestReader
from trio_kubelet.sources.static_pods import InvalidManifest, is_pod_uid

log = structlog.get_logger("sources")

_UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RecursionError,
    InvalidManifest,
)

Records = Mapping[str, tuple[ManifestPod, ...]]
"""Origin → the pods that run because of it, as last seen good."""


@frozen
class KeptManifests:
    """The records of one source. Methods block: call them in a thread."""

    _folder: Path
    _reader: ManifestReader

    def load(self) -> Records:
        """Read all records; one that cannot be read is logged and left out."""
        records: dict[str, tuple[ManifestPod, ...]] = {}
        for path in sorted(self._folder.glob(f"{self._reader.source}-*.json")):
            try:
                origin, pods = self._read(path)
            except _UNREADABLE as error:
                log.warning("manifest copy is unreadable", file=str(path), problem=str(error))
            else:
                records[origin] = pods
        return records

    def _read(self, path: Path) -> tuple[str, tuple[ManifestPod, ...]]:
        record = json.loads(path.read_bytes())
        origin = record["origin"]
        if self._path(origin) != path:
            raise ValueError("the file has the name of another manifest's")
        pods = (
            evolve(self._reader.pod(origin, each["document"]), uid=_kept_uid(each["uid"]))
            for each in record["pods"]
        )
        return origin, tuple(pods)

    def save(self, before: Records, after: Records) -> None:
        """Bring the disk from one state to another.

        Raises OSError, and then nothing is kept of the manifests that have changed: from an old
        state an agent that is started next would run another pod.
        """
        for origin in before.keys() - after.keys():
            self._path(origin).unlink(missing_ok=True)
        changed = {
            origin: pods
            for origin, pods in after.items()
            if _essence(pods) != _essence(before.get(origin, ()))
        }
        for origin, pods in changed.items():
            if not pods:
                self._path(origin).unlink(missing_ok=True)
        try:
            self._write({origin: pods for origin, pods in changed.items() if pods})
        except OSError:
            with contextlib.suppress(OSError):
                for origin in changed:
                    self._path(origin).unlink(missing_ok=True)
            raise

    def _write(self, records: Records) -> None:
        if not records:
            return
        make_folder(self._folder, 0o700, durable=True)
        contents = {self._path(origin): _content(origin, pods) for origin, pods in records.items()}
        write_all_whole(contents, durable=True)

    def _path(self, origin: str) -> Path:
        digest = hashlib.sha256(os.fsencode(origin)).hexdigest()[:32]
        return self._folder / f"{self._reader.source}-{digest}.json"


def _content(origin: str, pods: tuple[ManifestPod, ...]) -> bytes:
    kept = [{"uid": each.uid, "document": each.document} for each in pods]
    return json.dumps({"origin": origin, "pods": kept}, default=str).encode()


def _kept_uid(uid: object) -> str:
    if not isinstance(uid, str) or not is_pod_uid(uid):
        raise ValueError(f"{uid!r} is no UID")
    return uid


def _essence(pods: tuple[ManifestPod, ...]) -> tuple[tuple[str, str], ...]:
    return tuple((each.manifest_uid, each.uid) for each in pods)
