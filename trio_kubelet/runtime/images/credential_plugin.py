"""The program of an image credential provider: asked by a request on its standard input.

It is run for each question, with the agent's environment and what the configuration adds, and
answers with a CredentialProviderResponse (credentialprovider.kubelet.k8s.io). What it writes is
read up to a limit, and after a minute it is killed with all that it has started. Nothing of its
answer is ever logged; of its standard error a part is, as in the Go kubelet, without the token
that it was given.
"""

# ruff: noqa: RUF009 - option() and nullable() declare attrs fields

import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

import orjson
import trio
from attrs import field, frozen

from trio_kubelet.config.codec import decode, nullable, option
from trio_kubelet.config.records import CredentialProvider
from trio_kubelet.tasks.programs import MAX_STDERR_BYTES, run_program
from trio_kubelet.tasks.threads import run_in_thread

RUN_SECONDS = 60.0
"""A program that has not answered by then is killed, as by the Go kubelet."""

MAX_ANSWER_BYTES = 1 << 18
MAX_LOGINS = 1000
"""In an answer; each is compared with the name of the image."""

RESPONSE_KIND = "CredentialProviderResponse"


class CredentialPluginError(Exception):
    """A program gave no credentials; the message names it and has nothing of its answer."""


class CacheKeyType(StrEnum):
    """The images that the credentials of an answer are kept for."""

    IMAGE = "Image"
    REGISTRY = "Registry"
    GLOBAL = "Global"


@frozen(kw_only=True, repr=False)
class AuthConfig:
    """A login; it is never shown."""

    username: str = option("username", "")
    password: str = option("password", "")


@frozen(kw_only=True, repr=False)
class CredentialProviderResponse:
    """An answer. `cache_duration` None: as the configuration says; zero: it is not kept."""

    cache_key_type: str = option("cacheKeyType", "")
    cache_duration: timedelta | None = nullable("cacheDuration")
    auth: Mapping[str, AuthConfig] = option("auth", {})


@frozen(kw_only=True)
class CredentialRequest:
    """A question: the image without tag and digest, and the identity that it is pulled with."""

    image: str
    service_account_token: str = field(default="", repr=False)
    service_account_annotations: Mapping[str, str] = field(factory=dict)


@frozen
class CredentialPlugin:
    """Runs the program of a provider that is in `folder`.

    `on_run` is told the name, how many seconds each run took, and whether it failed.
    """

    provider: CredentialProvider
    folder: Path
    on_run: Callable[[str, float, bool], None]

    async def ask(self, request: CredentialRequest) -> CredentialProviderResponse:
        """Return the answer to a question. Raises CredentialPluginError.

        Cancelled, the program is killed with its children.
        """
        name, began_at = self.provider.name, trio.current_time()
        try:
            answer = await self._run(request)
        except CredentialPluginError:
            self.on_run(name, trio.current_time() - began_at, True)
            raise
        self.on_run(name, trio.current_time() - began_at, False)
        # An answer of the greatest size takes a thread some 50 ms.
        return await run_in_thread(self._read, answer)

    async def _run(self, request: CredentialRequest) -> bytes:
        """Run the program; returns what it wrote. Raises CredentialPluginError."""
        provider = self.provider
        failed = f"error execing credential provider plugin {provider.name} for image"
        failed = f"{failed} {request.image}"
        command = [str(self.folder / provider.name), *provider.args]
        environment = {**os.environ, **{each.name: each.value for each in provider.env}}
        try:
            end = await run_program(
                command,
                seconds=RUN_SECONDS,
                max_stdout_bytes=MAX_ANSWER_BYTES,
                request=self._text(request),
                environment=environment,
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise CredentialPluginError(f"{failed}: {error}") from None
        if not end.problem:
            return end.stdout
        shown = _without(request.service_account_token.encode(), end.stderr)
        said = shown.decode(errors="replace").strip()
        failed = f"{failed}: {end.problem}"
        raise CredentialPluginError(f"{failed}: {said}" if said else failed)

    def _text(self, request: CredentialRequest) -> bytes:
        document: dict[str, Any] = {
            "kind": "CredentialProviderRequest",
            "apiVersion": self.provider.api_version,
            "image": request.image,
        }
        if request.service_account_token:
            document["serviceAccountToken"] = request.service_account_token
        if request.service_account_annotations:
            document["serviceAccountAnnotations"] = {**request.service_account_annotations}
        return orjson.dumps(document) + b"\n"

    def _read(self, answer: bytes) -> CredentialProviderResponse:
        """Read an answer. Raises CredentialPluginError, whose words have nothing of it. Blocks."""
        name, expected = self.provider.name, self.provider.api_version
        try:
            document = orjson.loads(answer)
            version, kind = document.pop("apiVersion", ""), document.pop("kind", "")
        except (ValueError, AttributeError, TypeError):
            raise self._undecodable() from None
        if version != expected:
            raise CredentialPluginError(
                f"apiVersion from credential plugin {name} response did not match expected "
                f"apiVersion:{expected}"
            )
        auth = document.get("auth")
        if isinstance(auth, dict) and len(auth) > MAX_LOGINS:  # Decoded, they would take 0.1 s.
            raise CredentialPluginError(
                f"credential provider plugin {name} returned more than {MAX_LOGINS} logins"
            )
        decoded = decode(CredentialProviderResponse, document)
        if kind != RESPONSE_KIND or decoded.problems or decoded.unknown:
            raise self._undecodable()
        if decoded.value.cache_key_type not in list(CacheKeyType):
            raise CredentialPluginError(
                f"credential provider plugin {name} did not return a valid cacheKeyType"
            )
        return decoded.value

    def _undecodable(self) -> CredentialPluginError:
        return CredentialPluginError(
            f"error decoding credential provider plugin {self.provider.name} response from stdout"
        )


def _without(token: bytes, stderr: bytes) -> bytes:
    """Take the token out of a program's complaint, and a beginning of it at the end."""
    if not token:
        return stderr
    shown = stderr.replace(token, b"<token>")
    if len(stderr) < MAX_STDERR_BYTES:
        return shown
    lengths = range(min(len(token), len(shown)), 0, -1)
    cut = next((length for length in lengths if shown.endswith(token[:length])), 0)
    return shown[: len(shown) - cut]
