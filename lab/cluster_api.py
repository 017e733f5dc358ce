"""The API of a cluster as plain JSON: what tests and benchmarks ask and change as a user.

Not the agent's client, on purpose: what is tested must not be what tests with. Objects are
dictionaries as on the wire. Methods block; a client may be used by several threads.
"""

import json
import ssl
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from lab import LabError
from lab.pki import KeyPair
from lab.processes import wait_until

Json = dict[str, Any]
REQUEST_DEADLINE_SECONDS = 60.0
"""A config map of 80,000 keys takes a busy API server more than half a minute."""
MERGE_PATCH = "application/merge-patch+json"


class RefusedError(LabError):
    """The API server answered with a `Status`; `code` and `reason` are its own, as `NotFound`."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code = code
        self.reason = reason


class AwayError(LabError):
    """Nobody answered."""


class ClusterApi:
    """A client of one API server with one identity: a certificate, a bearer token, or neither."""

    def __init__(
        self, url: str, trusted: bytes, *, identity: KeyPair | None = None, token: str = ""
    ) -> None:
        self.url = url
        context = ssl.create_default_context(cadata=trusted.decode())
        if identity is not None:
            _load(context, identity)
        self._client = httpx.Client(
            base_url=url,
            verify=context,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=REQUEST_DEADLINE_SECONDS,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            trust_env=False,
        )

    def close(self) -> None:
        """Drop all connections."""
        self._client.close()

    def get(self, path: str, **query: str) -> Json:
        """Get an object or a list. RefusedError, or AwayError when nobody answers."""
        return self._ask("GET", path, query=query)

    def create(self, path: str, body: Mapping[str, Any]) -> Json:
        """Create an object in the collection `path`; returns it as the server has it."""
        return self._ask("POST", path, body)

    def replace(self, path: str, body: Mapping[str, Any]) -> Json:
        """Put an object in the place of the one that is there."""
        return self._ask("PUT", path, body)

    def patch(self, path: str, body: Mapping[str, Any], kind: str = MERGE_PATCH) -> Json:
        """Change fields of an object."""
        return self._ask("PATCH", path, body, kind=kind)

    def delete(self, path: str, *, grace_seconds: int | None = None) -> Json:
        """Delete an object or all of a collection; returns what the server says."""
        grace = {} if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}
        return self._ask("DELETE", path, grace)

    def healthy(self, path: str = "/readyz") -> bool:
        """Whether the server says that it is ready."""
        try:
            return self._client.get(path).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    @contextmanager
    def unread(self, path: str, **query: str) -> Iterator[int]:
        """Ask for what lasts, and read none of it until the end of the block; yields the status."""
        with self._client.stream("GET", path, params=query) as response:
            yield response.status_code

    @contextmanager
    def watch(
        self, path: str, *, deadline_seconds: float, **query: str
    ) -> Iterator[Iterator[Json]]:
        """Open a watch; inside, iterate over events `{type, object}` as they come.

        The iteration ends when the server ends the watch; AwayError if the connection breaks or
        nothing comes for the deadline.
        """
        asked = {"watch": "true", **query}
        try:
            with self._client.stream(
                "GET", path, params=asked, timeout=deadline_seconds
            ) as response:
                if response.is_error:
                    response.read()
                    raise _refusal(response)
                yield map(json.loads, response.iter_lines())
        except httpx.TransportError as error:
            raise AwayError(f"{self.url}{path}: {error}") from error

    def wait_for(
        self, path: str, holds: Callable[[Json], object], *, deadline_seconds: float = 60
    ) -> Json:
        """Wait until the object is there and looks as wanted; returns it as it looks then."""
        seen: Json = {}

        def look() -> bool:
            nonlocal seen
            try:
                seen = self.get(path)
            except RefusedError as error:
                if error.code != httpx.codes.NOT_FOUND:
                    raise
                seen = {}
                return False
            return bool(holds(seen))

        wait_until(
            look,
            deadline_seconds=deadline_seconds,
            else_say=lambda: f"{path} is {json.dumps(seen.get('status', 'not there'))}",
        )
        return seen

    def wait_gone(self, path: str, *, deadline_seconds: float = 60) -> None:
        """Wait until there is no such object."""

        def is_gone() -> bool:
            try:
                self.get(path)
            except RefusedError as error:
                return error.code == httpx.codes.NOT_FOUND
            return False

        wait_until(
            is_gone, deadline_seconds=deadline_seconds, else_say=lambda: f"{path} is still there"
        )

    def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        kind: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> Json:
        content = None if body is None else json.dumps(body).encode()
        try:
            response = self._client.request(
                method, path, content=content, params=query, headers={"Content-Type": kind}
            )
        except httpx.TransportError as error:
            raise AwayError(f"{self.url}{path}: {error!r}") from error
        if response.is_error:
            raise _refusal(response)
        answer: Json = response.json()
        return answer


def _refusal(response: httpx.Response) -> RefusedError:
    try:
        status = response.json()
        return RefusedError(response.status_code, status.get("reason", ""), status["message"])
    except (ValueError, KeyError, AttributeError):
        return RefusedError(response.status_code, "", response.text.strip())


def _load(context: ssl.SSLContext, identity: KeyPair) -> None:
    """Give the context the pair; the ssl module takes it from a file only."""
    with tempfile.TemporaryDirectory() as folder:
        certificate, key = identity.write(Path(folder), "identity")
        context.load_cert_chain(certificate, key)
