"""The credentials of a kubeconfig: headers for requests, certificates for connections.

Tokens and certificates that lie in files are read again once a minute, and at once after a
refusal: whoever renews them only has to replace the files. A file that cannot be read any more
leaves in force what was read before. What an exec plugin prints holds until it expires or is
refused. A certificate that the agent itself renews is asked for before each request.
"""

import base64
import math
import ssl
from collections.abc import Callable, Mapping
from typing import Any

import structlog
import trio

from trio_kubelet.k8s.client.credentials import CredentialError, Headers
from trio_kubelet.k8s.client.exec_plugin import ExecCredential, ExecPlugin
from trio_kubelet.k8s.client.kubeconfig import CredentialSource, Kubeconfig, KubeconfigUser
from trio_kubelet.k8s.client.tls import Tls, ssl_context
from trio_kubelet.tasks.clock import Clock
from trio_kubelet.tasks.threads import run_in_thread

RE_READ_SECONDS = 60.0

_NO_EXEC = ExecCredential()

log = structlog.get_logger()


class Identity:
    """The client's identity in a kubeconfig; shared by all clients that are made of it.

    `rotated` returns chain and key of a certificate that is used instead of the kubeconfig's user,
    in PEM; it raises CredentialError while there is none.
    """

    def __init__(
        self, config: Kubeconfig, clock: Clock, rotated: Callable[[], bytes] | None = None
    ) -> None:
        user = config.user if rotated is None else KubeconfigUser()
        self._rotated = rotated
        self._config = config
        self._user = user
        self._authority = _Content(config.cluster.certificate_authority)
        self._certificate = _Content(user.client_certificate)
        self._key = _Content(user.client_key)
        self._token = _Content(CredentialSource(user.token.encode(), user.token_file))
        self._read_at = -math.inf
        self._reading = trio.Lock()
        self._files = trio.CapacityLimiter(1)
        self._context: ssl.SSLContext | None = None
        self._context_tls: Tls | None = None
        self._plugin = ExecPlugin(user.exec, self._cluster_info, clock) if user.exec else None

    async def headers(self) -> Headers:
        """Return the headers that go with each request; raises CredentialError."""
        await self._read_files(trio.current_time() - RE_READ_SECONDS)
        if self._rotated is not None:
            self._rotated()
        authorization = self._authorization(await self._exec_credential())
        headers = self._user.impersonate
        return (*headers, ("Authorization", authorization)) if authorization else headers

    async def renew(self, refused: Headers) -> bool:
        """After a 401 for these headers: say whether there are others, or other certificates."""
        before = self._context_tls
        if self._plugin is not None:
            token = dict(refused).get("Authorization", "").removeprefix("Bearer ")
            self._plugin.forget(token)
        await self._read_files(trio.current_time())
        headers = await self.headers()
        now = self._tls(await self._exec_credential())
        return headers != refused or (before is not None and now != before)

    async def ssl_context(self) -> ssl.SSLContext:
        """Return the context for new connections: another one once a certificate has changed."""
        await self._read_files(trio.current_time() - RE_READ_SECONDS)
        tls = self._tls(await self._exec_credential())
        if self._context is not None and tls == self._context_tls:
            return self._context
        try:
            self._context = ssl_context(tls)
        except ValueError as error:
            if self._context is None:
                raise CredentialError(f"{self._config.path}: {error}") from None
            log.warning(
                "certificate reload failed, keeping the previous certificates", error=str(error)
            )
        self._context_tls = tls
        return self._context

    async def _read_files(self, not_before: float) -> None:
        """Read all files, unless they have been read since; one task does so for all."""
        if self._read_at > not_before:
            return
        async with self._reading:
            if self._read_at > not_before:
                return
            began = trio.current_time()
            contents = (self._authority, self._certificate, self._key, self._token)
            if any(content.path for content in contents):
                await run_in_thread(self._read_all, contents, limiter=self._files)
            self._read_at = began

    def _read_all(self, contents: "tuple[_Content, ...]") -> None:
        for content in contents:
            content.read()

    async def _exec_credential(self) -> ExecCredential:
        return _NO_EXEC if self._plugin is None else await self._plugin.credential()

    def _authorization(self, printed: ExecCredential) -> str:
        user = self._user
        token = self._token.data.decode(errors="replace").strip() or printed.token
        if token:
            return f"Bearer {token}"
        if user.username:
            both = f"{user.username}:{user.password}".encode()
            return f"Basic {base64.b64encode(both).decode()}"
        return ""

    def _tls(self, printed: ExecCredential) -> Tls:
        cluster = self._config.cluster
        rotated = self._rotated() if self._rotated is not None else b""
        return Tls(
            authority=self._authority.data,
            certificate=rotated or self._certificate.data or printed.certificate,
            key=rotated or self._key.data or printed.key,
            server_name=cluster.tls_server_name,
            insecure=cluster.insecure_skip_tls_verify,
        )

    def _cluster_info(self) -> Mapping[str, Any]:
        cluster = self._config.cluster
        info = {
            "server": cluster.server,
            "tls-server-name": cluster.tls_server_name,
            "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
            "certificate-authority-data": base64.b64encode(self._authority.data).decode(),
            "proxy-url": cluster.proxy_url,
            "config": cluster.exec_config,
        }
        return {name: value for name, value in info.items() if value}


class _Content:
    """The bytes of a certificate, a key or a token, as they were when last read."""

    __slots__ = ("_complained", "data", "path")

    def __init__(self, material: CredentialSource) -> None:
        self.data = material.data
        self.path = material.path
        self._complained = False

    def read(self) -> None:
        """Read the file, if it is one; raises CredentialError if it never could be. Blocks."""
        if self.path is None:
            return
        try:
            self.data = self.path.read_bytes()
            self._complained = False
        except OSError as error:
            if not self.data:
                raise CredentialError(f"{self.path} cannot be read: {error}") from None
            if not self._complained:
                log.warning(
                    "credential reload failed, keeping the previous credentials", error=error
                )
            self._complained = True
