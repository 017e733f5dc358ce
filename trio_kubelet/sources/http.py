"""Static pods from a URL: one manifest with one or more pods, or a PodList.

The URL is asked every httpCheckFrequency. An answer that is the same byte for byte changes
nothing; an empty one is an empty set; one that fails leaves everything as it is. A body that has
become bad leaves its pods running as they were, over a restart of the agent too.
"""

import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import cast

import httpx
import structlog
import trio

from trio_kubelet.foreign_text import without_passwords
from trio_kubelet.pod_source import Source
from trio_kubelet.sources.manifest_source import ManifestContext, SendPods
from trio_kubelet.sources.manifests import MAX_MANIFEST_BYTES, Manifest

DEFAULT_CHECK_SECONDS = 20.0
_REQUEST_SECONDS = 10.0

log = structlog.get_logger("sources")


async def watch_manifest_url(
    url: str,
    send: SendPods,
    given: ManifestContext,
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
    pods = given.pods(Source.HTTP, send, settle_seconds=0.0)
    await pods.load()
    sent_headers = [(name, value) for name, values in (headers or {}).items() for value in values]
    fetch = partial(_fetch, url, sent_headers)
    manifest: Manifest | None = None
    async with client or httpx.AsyncClient(
        timeout=_REQUEST_SECONDS, follow_redirects=True
    ) as session:
        while True:
            try:
                body, problem = await _asked(fetch, session)
                if problem:
                    await pods.take_trouble(url, problem)
                else:
                    if manifest is None or hashlib.sha256(body).hexdigest() != manifest.digest:
                        manifest = await pods.in_thread(partial(pods.reader.read, url, body))
                    await pods.take([manifest] if body else [])
            except Exception:
                log.exception("manifest processing failed", file=without_passwords(url))
            await trio.sleep(check_seconds)


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
    """Return the body; one byte more than allowed stands for a body that is too large."""
    async with client.stream("GET", url, headers=headers) as response:
        if response.status_code != httpx.codes.OK:
            raise _BadAnswerError(f"{response.status_code} {response.reason_phrase}")
        body = bytearray()
        read = cast("AsyncGenerator[bytes, None]", response.aiter_bytes())
        async with aclosing(read) as parts:
            async for part in parts:
                body += part
                if len(body) > MAX_MANIFEST_BYTES:
                    break
        return bytes(body[: MAX_MANIFEST_BYTES + 1])
