"""Exec plugins: programs that print the client's credentials (client.authentication.k8s.io).

The program runs when credentials are first needed, when they have expired, and when the server
has refused them; all who need them then wait for one run. It is told what it is asked for in
the variable KUBERNETES_EXEC_INFO, and has no terminal.
"""

import math
import os
import shutil
from collections.abc import Callable, Mapping
from datetime import datetime
from subprocess import CompletedProcess
from typing import Any

import orjson
import trio
from attrs import field, frozen

from trio_kubelet.k8s.client.credentials import CredentialError
from trio_kubelet.k8s.client.kubeconfig import ExecConfig
from trio_kubelet.tasks.clock import Clock
from trio_kubelet.tasks.threads import thread_wanted

RUN_SECONDS = 60.0
"""A program that has printed nothing by then is ended."""

FORGET_CERTIFICATE_SECONDS = 5.0
"""Many requests may be refused for the same certificate: the program runs once for them."""

_SHOWN_STDERR_CHARACTERS = 500


@frozen
class ExecCredential:
    """The output of a plugin; the certificate and its key as PEM."""

    token: str = field(default="", repr=False)
    certificate: bytes = field(default=b"", repr=False)
    key: bytes = field(default=b"", repr=False)
    expires_ns: int | None = None


class ExecPlugin:
    """Runs the program when needed; `cluster` returns what it is told if it asks for that."""

    __slots__ = ("_clock", "_cluster", "_config", "_credential", "_lock", "_ran_at")

    def __init__(
        self, config: ExecConfig, cluster: Callable[[], Mapping[str, Any]], clock: Clock
    ) -> None:
        self._config = config
        self._cluster = cluster
        self._clock = clock
        self._credential: ExecCredential | None = None
        self._lock = trio.Lock()
        self._ran_at = -math.inf

    async def credential(self) -> ExecCredential:
        """Return credentials that have not expired; raises CredentialError."""
        async with self._lock:
            known = self._credential
            now = self._clock.now_ns()
            if known is None or (known.expires_ns is not None and known.expires_ns <= now):
                known = self._credential = await self._run()
            return known

    def forget(self, refused_token: str) -> None:
        """Have the program run again next time, unless it has just done so for another."""
        known = self._credential
        if known is None or known.token != refused_token:
            return
        if known.token or trio.current_time() - self._ran_at >= FORGET_CERTIFICATE_SECONDS:
            self._credential = None

    async def _run(self) -> ExecCredential:
        config = self._config
        path = shutil.which(config.command)
        if path is None:
            raise self._error("there is no such program")
        self._ran_at = trio.current_time()
        spec: dict[str, Any] = {"interactive": False}
        if config.provide_cluster_info:
            spec["cluster"] = self._cluster()
        info = {"kind": "ExecCredential", "apiVersion": config.api_version, "spec": spec}
        environment = {
            **os.environ,
            **config.env,
            "KUBERNETES_EXEC_INFO": orjson.dumps(info).decode(),
        }
        with trio.move_on_after(RUN_SECONDS):
            try:
                with thread_wanted():
                    done = await trio.run_process(
                        [path, *config.args],
                        env=environment,
                        capture_stdout=True,
                        capture_stderr=True,
                        check=False,
                    )
            except OSError as error:
                raise self._error(f"cannot be run: {error}") from None
            return self._read(done)
        raise self._error(f"did not end within {RUN_SECONDS:g} s")

    def _read(self, done: "CompletedProcess[bytes]") -> ExecCredential:
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip()[-_SHOWN_STDERR_CHARACTERS:]
            raise self._error(f"failed with exit code {done.returncode}: {said}")
        try:
            answer = orjson.loads(done.stdout)
            status = answer["status"]
            printed = (answer["kind"], answer["apiVersion"])
            credential = ExecCredential(
                token=status.get("token", ""),
                certificate=status.get("clientCertificateData", "").encode(),
                key=status.get("clientKeyData", "").encode(),
                expires_ns=_expiry_ns(status.get("expirationTimestamp", "")),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            raise self._error("did not print an ExecCredential with a status") from None
        if printed != ("ExecCredential", self._config.api_version):
            raise self._error(f"printed {printed[0]} of {printed[1]}, not what it was asked for")
        if bool(credential.certificate) is not bool(credential.key):
            raise self._error("printed a certificate without its key, or a key without certificate")
        if not credential.token and not credential.key:
            raise self._error("printed neither a token nor a certificate")
        return credential

    def _error(self, why: str) -> CredentialError:
        hint = f"\n{self._config.install_hint}" if self._config.install_hint else ""
        return CredentialError(f"the exec plugin {self._config.command}: {why}{hint}")


def _expiry_ns(text: str) -> int | None:
    return int(datetime.fromisoformat(text).timestamp() * 1e9) if text else None
