"""A small HTTPS server on a real socket: what an in-memory transport cannot show."""

import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import h11
import orjson
import trio
import trustme
import yaml
from attrs import define, field

NODE = {"metadata": {"name": "n1"}}


@define
class Seen:
    """A request as the server saw it."""

    connection: int
    target: str
    headers: dict[str, str]
    certificate: str


@define(eq=False)
class TlsServer:
    """Answers each request with `answer`, over TLS, and remembers what was asked.

    An answer of None closes the connection without a word; a chunked one is `bytes` chunks.
    """

    folder: Path
    answer: Callable[[Seen], tuple[int, Mapping[str, object]] | None] = lambda seen: (200, NODE)
    authority: trustme.CA = field(factory=trustme.CA)
    names: tuple[str, ...] = ("127.0.0.1",)
    seen: list[Seen] = field(factory=list)
    open_connections: set[int] = field(factory=set)
    port: int = 0
    _connections: int = 0
    _changed: trio.Event = field(factory=trio.Event)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["TlsServer"]:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.verify_mode = ssl.CERT_OPTIONAL
        self.authority.configure_trust(context)
        self.authority.issue_cert(*self.names).configure_cert(context)
        async with trio.open_nursery() as nursery:
            listeners = await trio.open_ssl_over_tcp_listeners(0, context, host="127.0.0.1")
            listener = listeners[0].transport_listener
            assert isinstance(listener, trio.SocketListener)
            self.port = listener.socket.getsockname()[1]
            nursery.start_soon(trio.serve_listeners, self._serve, listeners)
            yield self
            nursery.cancel_scope.cancel()

    def client_files(self, name: str) -> None:
        """Write client.crt and client.key for a client of that name."""
        certificate = self.authority.issue_cert("client.test", common_name=name)
        pem = b"".join(blob.bytes() for blob in certificate.cert_chain_pems)
        (self.folder / "client.crt").write_bytes(pem)
        (self.folder / "client.key").write_bytes(certificate.private_key_pem.bytes())

    def kubeconfig(
        self, user: Mapping[str, object], cluster: Mapping[str, object] | None = None
    ) -> Path:
        """Write a kubeconfig for this server."""
        self.authority.cert_pem.write_to_path(self.folder / "ca.crt")
        server = {
            "server": f"https://127.0.0.1:{self.port}",
            "certificate-authority": "ca.crt",
            **(cluster or {}),
        }
        path = self.folder / "kubeconfig"
        path.write_text(
            yaml.safe_dump(
                {
                    "current-context": "here",
                    "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
                    "clusters": [{"name": "c", "cluster": server}],
                    "users": [{"name": "u", "user": dict(user)}],
                }
            )
        )
        return path

    async def until(self, condition: Callable[[], object]) -> None:
        with trio.fail_after(10):
            while not condition():
                await self._changed.wait()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def _serve(self, stream: trio.SSLStream[trio.SocketStream]) -> None:
        self._connections += 1
        number = self._connections
        self.open_connections.add(number)
        try:
            await self._talk(stream, number)
        except (trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError):
            pass
        finally:
            self.open_connections.discard(number)
            self._tell()
            await trio.aclose_forcefully(stream)

    async def _talk(self, stream: trio.SSLStream[trio.SocketStream], number: int) -> None:
        connection = h11.Connection(h11.SERVER)
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(bytes(await stream.receive_some()))
            elif isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.EndOfMessage):
                if not await self._respond(stream, connection, number, request):
                    return
                connection.start_next_cycle()
            elif isinstance(event, h11.ConnectionClosed):
                return

    async def _respond(
        self,
        stream: trio.SSLStream[trio.SocketStream],
        connection: h11.Connection,
        number: int,
        request: h11.Request,
    ) -> bool:
        peer = stream.getpeercert() or {}
        subject = dict(pair for part in peer.get("subject", ()) for pair in part)
        headers = {name.decode(): value.decode() for name, value in request.headers}
        seen = Seen(number, request.target.decode(), headers, subject.get("commonName", ""))
        self.seen.append(seen)
        self._tell()
        answer = self.answer(seen)
        if answer is None:
            return False
        code, data = answer
        body = orjson.dumps(data)
        length = ("Content-Length", str(len(body)))
        head = connection.send(h11.Response(status_code=code, headers=[length]))
        await stream.send_all(head + connection.send(h11.Data(body)))
        connection.send(h11.EndOfMessage())
        return True


@define(eq=False)
class Proxy:
    """An HTTP proxy that opens tunnels, and remembers where to."""

    port: int = 0
    targets: list[str] = field(factory=list)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Proxy"]:
        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            self.port = listeners[0].socket.getsockname()[1]
            nursery.start_soon(trio.serve_listeners, self._serve, listeners)
            yield self
            nursery.cancel_scope.cancel()

    async def _serve(self, client: trio.SocketStream) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += await client.receive_some()
        target = head.split()[1].decode()
        self.targets.append(target)
        host, _, port = target.partition(":")
        async with client, await trio.open_tcp_stream(host, int(port)) as server:
            await client.send_all(b"HTTP/1.1 200 Connected\r\n\r\n")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_pass_on, client, server)
                await _pass_on(server, client)
                nursery.cancel_scope.cancel()


async def _pass_on(source: trio.SocketStream, target: trio.SocketStream) -> None:
    try:
        async for chunk in source:
            await target.send_all(chunk)
    except trio.BrokenResourceError:
        pass  # the other side has gone
