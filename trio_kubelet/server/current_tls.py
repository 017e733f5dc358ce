"""The current TLS context: made of files, and replaced when one of them changes.

New connections use the new one; open connections keep theirs. Files that cannot be used leave the
previous context in place.
"""

import ssl
from pathlib import Path
from typing import Self

import structlog
import trio
from attrs import frozen

from trio_kubelet.config.tls_names import DEFAULT_CIPHERS
from trio_kubelet.kernel.path_watch import PathWatch
from trio_kubelet.server.tls import ServerTls, server_context
from trio_kubelet.tasks.threads import run_in_thread

log = structlog.get_logger("server")

RE_READ_SECONDS = 60.0
"""The interval of reads though no change was seen: links may lead to other folders."""


@frozen
class TlsFiles:
    """Where certificate, key and the authorities of clients lie, and what else is set."""

    certificate: Path
    key: Path
    authorities: Path | None = None
    minimum_version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
    ciphers: str = DEFAULT_CIPHERS

    @property
    def paths(self) -> tuple[Path, ...]:
        """All of them."""
        return tuple(filter(None, (self.certificate, self.key, self.authorities)))

    def read(self) -> ServerTls:
        """The content of the files now. Blocks; raises OSError."""
        return ServerTls(
            certificate=self.certificate.read_bytes(),
            key=self.key.read_bytes(),
            authorities=self.authorities.read_bytes() if self.authorities else None,
            minimum_version=self.minimum_version,
            ciphers=self.ciphers,
        )


class CurrentTls:
    """Holds the newest `context`. `open` makes it."""

    def __init__(self, files: TlsFiles, tls: ServerTls) -> None:
        self.context = server_context(tls)
        self._files = files
        self._tls = tls
        self._limiter = trio.CapacityLimiter(1)

    @classmethod
    async def open(cls, files: TlsFiles) -> Self:
        """Read the files and make the context. Raises OSError and ValueError."""
        return cls(files, await run_in_thread(files.read))

    async def reload(self) -> None:
        """Read the files and make the context anew if they have changed; OSError, ValueError."""
        tls = await run_in_thread(self._files.read, limiter=self._limiter)
        if tls == self._tls:
            return
        self.context, self._tls = server_context(tls), tls
        log.info("server certificates reloaded", files=[str(path) for path in self._files.paths])

    async def follow(self) -> None:
        """Load the files whenever one of them changes, forever."""
        async with trio.open_nursery() as nursery:
            for path in self._files.paths:
                nursery.start_soon(self._follow, path)

    async def _follow(self, path: Path) -> None:
        complained = ""
        with PathWatch(path) as watch:
            while True:
                await run_in_thread(watch.arm, limiter=self._limiter)
                try:
                    await self.reload()
                    complained = ""
                except (OSError, ValueError) as error:
                    if str(error) != complained:
                        log.warning(
                            "certificate reload failed, keeping the previous certificates",
                            error=str(error),
                        )
                    complained = str(error)
                with trio.move_on_after(RE_READ_SECONDS):
                    await watch.changed()
