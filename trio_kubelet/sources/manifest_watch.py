"""Static pods from a folder of manifests, from a single file, or from a URL.

A thread looks at the folder: whenever inotify tells of a change, and every fileCheckFrequency in
case it did not. Files that have not changed are not read again. Every file counts whatever its
extension; dotfiles and subfolders do not. What is missing is an empty set.

The URL, of one manifest with one or more pods or a PodList, is asked every httpCheckFrequency. An
answer that is the same byte for byte changes nothing; an empty one is an empty set; one that
fails leaves everything as it is.

A manifest that has become bad leaves its pods running as they were, over a restart of the agent
too (see `manifests`), and is reported (see `manifest_source`). The full set goes to the callback
when all are first read and whenever it changes.
"""

import errno
import hashlib
import math
import os
import stat
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, nullcontext
from functools import partial
from pathlib import Path
from typing import cast

import httpx
import structlog
import trio
from attrs import field, frozen

from trio_kubelet.foreign_text import without_passwords
from trio_kubelet.kernel.path_watch import PathWatch
from trio_kubelet.pod_source import Source
from trio_kubelet.sources.manifest_source import ManifestContext, SendPods
from trio_kubelet.sources.manifests import MAX_MANIFEST_BYTES, Manifest, ManifestReader
from trio_kubelet.tasks.lookups import looking_up_with

log = structlog.get_logger("sources")

DEFAULT_CHECK_SECONDS = 20.0

_RACY_NS = 2_000_000_000
"""A file may change twice within one tick of its timestamp: a younger one is read again."""

_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR})

_REQUEST_SECONDS = 10.0


@frozen(kw_only=True)
class SeenFile:
    """A manifest file as last read: `signature` tells whether it must be read again."""

    signature: tuple[int, ...]
    manifest: Manifest


@frozen(kw_only=True)
class FolderContents:
    """One look at the folder: path → file in the order of names, or why it could not be read."""

    files: Mapping[str, SeenFile] = field(factory=dict)
    problem: str = ""


async def watch_manifest_files(
    path: Path,
    send: SendPods,
    context: ManifestContext,
    *,
    check_seconds: float = DEFAULT_CHECK_SECONDS,
) -> None:
    """Watch `staticPodPath` (absolute) forever and send every new full set of pods.

    `check_seconds` is fileCheckFrequency. Errors of the disk are reported and tried again. When
    cancelled it leaves nothing behind, except that a thread may still be waiting for a disk that
    does not answer.
    """
    pods = context.pods(Source.FILE, send)
    await pods.load()
    seen: Mapping[str, SeenFile] = {}
    with PathWatch(path) as watch:
        while True:
            look_again = math.inf
            try:
                found = await pods.look(partial(look, path, pods.reader, seen, watch))
                if found.problem:
                    look_again = await pods.take_trouble(str(path), found.problem)
                else:
                    seen = found.files
                    look_again = await pods.take([each.manifest for each in seen.values()])
            except Exception:
                log.exception("manifest processing failed", file=str(path))
            with trio.move_on_at(min(look_again, trio.current_time() + check_seconds)):
                await watch.changed()


def look(
    path: Path, reader: ManifestReader, known: Mapping[str, SeenFile], watch: PathWatch
) -> FolderContents:
    """Arm the watch, then read what is there and has changed. Blocks; raises nothing."""
    watch.arm()
    try:
        paths = sorted(each for each in path.iterdir() if not each.name.startswith("."))
    except NotADirectoryError:
        paths = [path]
    except FileNotFoundError:
        return FolderContents()
    except OSError as error:
        return FolderContents(problem=f"cannot be read: {error.strerror}")
    files: dict[str, SeenFile] = {}
    for each in paths:
        origin = os.fsencode(each).decode("utf-8", "backslashreplace")
        seen = _read(each, origin, reader, known.get(origin))
        if seen is not None:
            files[origin] = seen
    return FolderContents(files=files)


def _read(
    path: Path, origin: str, reader: ManifestReader, known: SeenFile | None
) -> SeenFile | None:
    """Read a file unless it is as known; None for what is no file, or none any more."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            return None
        signature = (
            status.st_dev,
            status.st_ino,
            status.st_mode,
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
        )
        settled = time.time_ns() - status.st_mtime_ns > _RACY_NS
        if known is not None and known.signature == signature and settled:
            return known
        data = _content(path)
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        why = f"cannot be read: {error.strerror or error}"
        return SeenFile(signature=(), manifest=Manifest(origin=origin, digest="", problems=(why,)))
    if known is not None and known.manifest.digest == hashlib.sha256(data).hexdigest():
        return SeenFile(signature=signature, manifest=known.manifest)
    return SeenFile(signature=signature, manifest=reader.read(origin, data))


def _content(path: Path) -> bytes:
    # Not blocking: it could have become a pipe since it was looked at.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        return file.read(MAX_MANIFEST_BYTES + 1) or b""


async def watch_manifest_url(
    url: str,
    send: SendPods,
    context: ManifestContext,
    *,
    headers: Mapping[str, Sequence[str]] | None = None,
    check_seconds: float = DEFAULT_CHECK_SECONDS,
    client: httpx.AsyncClient | None = None,
) -> None:
    """Ask `staticPodURL` forever and send every new full set of pods.

    `headers` are those of staticPodURLHeader and never logged; `check_seconds` is
    httpCheckFrequency. While the URL does not answer, pods of an earlier run go on; where there
    are none nothing is sent. When cancelled it leaves nothing behind.
    """
    pods = context.pods(Source.HTTP, send, settle_seconds=0.0)
    await pods.load()
    sent_headers = [(name, value) for name, values in (headers or {}).items() for value in values]
    fetch = partial(_fetch, url, sent_headers)
    manifest: Manifest | None = None
    session, no_session = (client, "") if client is not None else _new_client()
    async with session or nullcontext():
        while True:
            try:
                with looking_up_with(context.looks):
                    body, problem = await _asked(fetch, session) if session else (b"", no_session)
                if problem:
                    await pods.take_trouble(url, problem)
                else:
                    if manifest is None or hashlib.sha256(body).hexdigest() != manifest.digest:
                        manifest = await pods.in_thread(partial(pods.reader.read, url, body))
                    await pods.take([manifest] if body else [])
            except Exception:
                log.exception("manifest processing failed", file=without_passwords(url))
            await trio.sleep(check_seconds)


def _new_client() -> tuple[httpx.AsyncClient | None, str]:
    """Return a client, and why there is none: the environment names a proxy or certificates."""
    try:
        return httpx.AsyncClient(timeout=_REQUEST_SECONDS, follow_redirects=True), ""
    except (ImportError, OSError, ValueError, httpx.InvalidURL) as error:
        return None, f"cannot be fetched: {type(error).__name__}: {error}"


class _BadAnswerError(Exception):
    """The server answered, but not with a manifest."""


async def _asked(
    fetch: Callable[[httpx.AsyncClient], Awaitable[bytes]], client: httpx.AsyncClient
) -> tuple[bytes, str]:
    """Return the body, and why there is none."""
    try:
        with trio.fail_after(_REQUEST_SECONDS):
            return await fetch(client), ""
    except (httpx.HTTPError, httpx.InvalidURL, trio.TooSlowError, _BadAnswerError) as error:
        return b"", f"cannot be fetched: {type(error).__name__}: {error}"


async def _fetch(url: str, headers: Sequence[tuple[str, str]], client: httpx.AsyncClient) -> bytes:
    """Return the body; one byte more than allowed stands for a body that is too large.

    Nothing compressed is taken: one piece of it may become a thousand times as large.
    """
    wanted = [("Accept-Encoding", "identity"), *headers]
    async with client.stream("GET", url, headers=wanted) as response:
        if response.status_code != httpx.codes.OK:
            raise _BadAnswerError(f"{response.status_code} {response.reason_phrase}")
        encoding = response.headers.get("Content-Encoding", "identity")
        if encoding != "identity":
            raise _BadAnswerError(f"the answer is encoded, which was not asked for: {encoding}")
        body = bytearray()
        read = cast("AsyncGenerator[bytes, None]", response.aiter_bytes())
        async with aclosing(read) as parts:
            async for part in parts:
                body += part
                if len(body) > MAX_MANIFEST_BYTES:
                    break
        return bytes(body[: MAX_MANIFEST_BYTES + 1])
