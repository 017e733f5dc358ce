"""`/logs/`: files of the node's folder of logs, and the node log query where its gate is on."""

import errno
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio
from attrs import field, frozen

from trio_kubelet.logs.folder import (
    Folder,
    OpenFile,
    existing_logs,
    folder_page,
    open_inside,
    relative_url,
)
from trio_kubelet.logs.journal import RunningQuery, SystemdJournal
from trio_kubelet.logs.query import LogQuery, is_query, journal_arguments, log_query
from trio_kubelet.server.messages import Request, RequestError, Response
from trio_kubelet.server.request_head import ByteRange, wanted_range
from trio_kubelet.server.router import Right, Route
from trio_kubelet.tasks.threads import run_in_thread

T = TypeVar("T")

PIECE_BYTES = 256 * 1024
THREADS = 4
QUERIES = 4
"""So many at once; each is a process, and the journal may be long."""

QUERY_TYPE = "text/plain;charset=UTF-8"
_NOT_FOUND = (
    *(errno.ENOENT, errno.ENOTDIR, errno.EXDEV, errno.ELOOP, errno.EINVAL, errno.ENXIO),
    errno.ENAMETOOLONG,
)
_NOT_ALLOWED = (errno.EACCES, errno.EPERM)


@frozen(kw_only=True)
class SystemLogs:
    """Answers requests for what is below `root`; `queries` is whether logs may be queried."""

    queries: bool
    root: Path = Path("/var/log")
    journal: SystemdJournal = field(factory=SystemdJournal)
    limiter: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(THREADS))
    _answering: set[RunningQuery] = field(factory=set)

    async def answer(self, request: Request) -> Response:
        """A file, a page that lists a folder, or what was queried. Raises RequestError."""
        path = request.parameters["path"]
        if not (self.queries and is_query(request.query)):
            return await self._show(path, request)
        if path:
            raise RequestError(406, "path not allowed in query mode")
        # A pattern of some hundred characters may take seconds to be understood.
        query = await self._in_thread(partial(log_query, request.query))
        if not query.file:
            body = self._one_of_few(query)
            await anext(body)  # From now on the generator counts, and does so to its end.
            return Response(content_type=QUERY_TYPE, body=body)
        try:
            return await self._open(query.file, request)
        except OSError as error:
            why = (error.strerror or "").lower()
            words = f'query: Invalid value: ["{query.file}"]: statat {query.file}: {why}'
            raise RequestError(406, words) from error

    async def _show(self, path: str, request: Request) -> Response:
        try:
            return await self._open(path, request)
        except OSError as error:
            if error.errno in _NOT_FOUND:
                raise RequestError(404, "404 page not found") from error
            if error.errno in _NOT_ALLOWED:
                raise RequestError(403, "403 Forbidden") from error
            raise RequestError(500, "500 Internal Server Error") from error

    async def _open(self, path: str, request: Request) -> Response:
        """Raises OSError, and RequestError for a part of a file that there is not."""
        found = await self._in_thread(lambda: open_inside(self.root, path.rstrip("/") or "."))
        name = path.rstrip("/").rpartition("/")[2]
        if isinstance(found, Folder):
            if path and not path.endswith("/"):
                return _moved(f"{name}/")
            return Response(content_type="text/html; charset=utf-8", body=folder_page(found))
        if path.endswith("/"):
            os.close(found.descriptor)
            return _moved(f"../{name}")
        try:
            part = wanted_range(request.headers.first("range"), found.size_bytes)
        except RequestError:
            os.close(found.descriptor)
            raise
        return await self._file(found, part)

    async def _file(self, file: OpenFile, part: ByteRange | None) -> Response:
        body = self._pieces(file.descriptor, part or ByteRange(0, file.size_bytes))
        await anext(body)  # From now on the generator closes the file.
        headers = [("Accept-Ranges", "bytes")]
        if part is not None:
            headers.append(("Content-Range", f"bytes {part.text}/{file.size_bytes}"))
        return Response(
            status=206 if part is not None else 200,
            content_type=file.content_type,
            headers=tuple(headers),
            body=body,
        )

    async def _pieces(self, descriptor: int, part: ByteRange) -> AsyncGenerator[bytes, None]:
        """A part of a file, after an empty piece; less of it if the file becomes shorter."""
        position, rest = part.begin, part.size_bytes
        try:
            yield b""
            while rest:
                read = partial(os.pread, descriptor, min(rest, PIECE_BYTES), position)
                piece = await self._in_thread(read)
                if not piece:
                    return  # It has become shorter meanwhile.
                position, rest = position + len(piece), rest - len(piece)
                yield piece
        finally:
            os.close(descriptor)

    async def _one_of_few(self, query: LogQuery) -> AsyncGenerator[bytes, None]:
        """The answer to a query after an empty piece. Raises RequestError if there are too many."""
        for each in [each for each in self._answering if each.is_late()]:
            # Its client does not read, or the query would have ended by itself.
            each.end()
            self._answering.discard(each)
        if len(self._answering) >= QUERIES:
            raise RequestError(429, "too many log queries at once, try again later")
        running = RunningQuery()
        self._answering.add(running)
        try:
            yield b""
            async with aclosing(self._of_services(query, running)) as pieces:
                async for piece in pieces:
                    yield piece
        finally:
            self._answering.discard(running)

    async def _of_services(
        self, query: LogQuery, running: RunningQuery
    ) -> AsyncGenerator[bytes, None]:
        """The entries of services in the journal, then the files of those that it has not."""
        units = await self.journal.units(running)
        in_journal = tuple(name for name in query.services if name in units)
        if in_journal:
            arguments = journal_arguments(query, in_journal)
            async with aclosing(self.journal.entries(arguments, running)) as pieces:
                async for piece in pieces:
                    yield piece
        others = tuple(name for name in query.services if name not in units)
        if others and query.has_options:
            named = " ".join(others)
            yield f"\noptions present and query resolved to log files for [{named}]\n".encode()
            yield b"try without specifying options\n"
            return
        for name in others:
            async with aclosing(self._of_service(name)) as pieces:
                async for piece in pieces:
                    yield piece

    async def _of_service(self, name: str) -> AsyncGenerator[bytes, None]:
        names = (name, f"{name}.log", f"{name}/{name}.log")
        try:
            file = await self._in_thread(lambda: existing_logs(self.root, names))
        except FileNotFoundError:
            yield f"\nlog not found for {name}\n".encode()
            return
        except OSError as error:
            yield f"\nerror getting log for {name}: {(error.strerror or '').lower()}\n".encode()
            return
        whole = ByteRange(0, file.size_bytes)
        async with aclosing(self._pieces(file.descriptor, whole)) as pieces:
            async for piece in pieces:
                yield piece

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await run_in_thread(work, limiter=self.limiter)


def _moved(path: str) -> Response:
    return Response(status=301, headers=(("Location", relative_url(path)),))


def system_log_routes(logs: SystemLogs) -> Sequence[Route]:
    """The one route."""
    return (Route("GET", "/logs/{path...}", logs.answer, Right(subresource="log")),)
