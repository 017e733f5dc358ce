"""The files of pull records, in the form that agent and Go kubelet share.

`image_manager/pulling` has an intent for each pull under way, `image_manager/pulled` a record for
each image that was pulled. A file's name is made of the SHA-256 of the image's name or id, its
content is JSON of the API group `kubelet.config.k8s.io`. Everything that touches files blocks.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

import structlog
from attrs import frozen

from trio_kubelet.config.codec import decode, to_wire
from trio_kubelet.config.records import ImagePulledRecord, ImagePullIntent
from trio_kubelet.k8s import Time
from trio_kubelet.k8s.json_text import go_json
from trio_kubelet.kernel.whole_files import make_folder, write_whole

log = structlog.get_logger("images")

GROUP = "kubelet.config.k8s.io"
VERSION = f"{GROUP}/v1beta1"
"""The records that are written."""

_READ_VERSIONS = (VERSION, f"{GROUP}/v1alpha1")
_PREFIX = "sha256-"
_UNFINISHED = ".tmp"
_FOLDER_MODE = 0o700

T = TypeVar("T", bound=ImagePullIntent | ImagePulledRecord)


class PullRecordError(ValueError):
    """A file holds no pull record; the message says why."""


def file_name(image: str) -> str:
    """Return the name of the file for the name or the id of an image."""
    digest = hashlib.sha256(image.encode(errors="surrogatepass")).hexdigest()
    return f"{_PREFIX}{digest}"


def printed(value: ImagePullIntent | ImagePulledRecord) -> str:
    """Return the text of a file."""
    wire = to_wire(value)
    if mapping := wire.get("credentialMapping"):
        wire["credentialMapping"] = dict(sorted(mapping.items()))
    return go_json({"kind": type(value).__name__, "apiVersion": VERSION, **wire}) + "\n"


def parsed(kind: type[T], data: bytes) -> tuple[T, bool]:
    """Read the content of a file; returns also whether it is of the version that is written.

    Raises PullRecordError for what the Go kubelet would refuse, unknown fields among it.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise PullRecordError(f"it is not JSON: {error}") from None
    if not isinstance(document, dict) or document.pop("kind", None) != kind.__name__:
        raise PullRecordError(f"its kind must be {kind.__name__}")
    version = document.pop("apiVersion", None)
    if version not in _READ_VERSIONS:
        raise PullRecordError(f"its apiVersion must be one of {', '.join(_READ_VERSIONS)}")
    found = decode(kind, document)
    if found.problems or found.unknown:
        unknown = (f"{path}: unknown field" for path in found.unknown)
        raise PullRecordError("; ".join((*found.problems, *unknown)))
    try:
        printed(found.value).encode()
        if isinstance(found.value, ImagePulledRecord) and found.value.last_updated_time:
            Time.parse(found.value.last_updated_time)
    except ValueError as error:
        raise PullRecordError(str(error)) from None
    return found.value, version == VERSION


@frozen
class FolderContent(Generic[T]):
    """The content of a folder: its records, and the names of the files that could not be read."""

    values: tuple[T, ...]
    unreadable: frozenset[str]


class PullRecordFolder(Generic[T]):
    """The files of one kind. Every method blocks, and raises OSError unless it says otherwise.

    `key` gives the name or id that a file is named after.
    """

    def __init__(self, path: Path, kind: type[T], key: Callable[[T], str]) -> None:
        self._path = path
        self._kind = kind
        self._key = key

    def make(self) -> None:
        """Make the folder, for the agent's user alone."""
        make_folder(self._path, _FOLDER_MODE, durable=True)

    def read(self) -> FolderContent[T]:
        """Read all files; what is of an older version is written anew, as the Go kubelet does it.

        A file that cannot be read, or is none of ours, is logged and disturbs no other.
        """
        values: list[T] = []
        unreadable: set[str] = set()
        for path in self._files():
            try:
                value, is_current = parsed(self._kind, path.read_bytes())
            except (OSError, PullRecordError) as error:
                log.warning("image pull record is malformed", path=str(path), problem=str(error))
                unreadable.add(path.name)
                continue
            values.append(value)
            if not is_current:
                self._write_anew(value)
        return FolderContent(tuple(values), frozenset(unreadable))

    def count(self) -> int:
        """The number of files; none where there is no folder yet."""
        try:
            return sum(1 for _ in self._files())
        except FileNotFoundError:
            return 0

    def write(self, value: T) -> None:
        """Write one as a whole, in the place of what was there."""
        self.make()
        path = self._path / file_name(self._key(value))
        write_whole(path, printed(value).encode(), durable=True)

    def remove(self, name: str) -> None:
        """Remove a file, by its name; one that is gone is fine.

        It need not be durable: an intent or a record that is back denies, and allows nobody more.
        """
        (self._path / name).unlink(missing_ok=True)

    def _files(self) -> Iterator[Path]:
        for entry in os.scandir(self._path):
            is_ours = entry.name.startswith(_PREFIX) and not entry.name.endswith(_UNFINISHED)
            if is_ours and entry.is_file(follow_symlinks=False):
                yield Path(entry.path)

    def _write_anew(self, value: T) -> None:
        try:
            self.write(value)
        except OSError as error:
            log.warning("image pull record migration failed", problem=str(error))


def intents(root: Path) -> PullRecordFolder[ImagePullIntent]:
    """Return the folder of the pulls under way, below `--root-dir`."""
    path = root / "image_manager" / "pulling"
    return PullRecordFolder(path, ImagePullIntent, lambda intent: intent.image)


def pulled_records(root: Path) -> PullRecordFolder[ImagePulledRecord]:
    """Return the folder of the images that were pulled, below `--root-dir`."""
    path = root / "image_manager" / "pulled"
    return PullRecordFolder(path, ImagePulledRecord, lambda record: record.image_ref)
