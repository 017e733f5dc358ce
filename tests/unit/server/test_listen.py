"""Addresses that are listened on, and the agent's own socket."""

import errno
import os
import stat
from pathlib import Path

import httpx
import pytest
import trio

from lab.ports import free_port
from trio_kubelet.server import Request, Response, listen_tcp, listen_unix, serve_http
from trio_kubelet.server.messages import UnixPeer


async def hello(_request: Request) -> Response:
    return Response(body=b"hello")


async def ask(path: Path) -> str:
    transport = httpx.AsyncHTTPTransport(uds=str(path))
    async with httpx.AsyncClient(transport=transport) as client:
        return (await client.get("http://agent/")).text


def loopbacks() -> list[str]:
    """Those that this machine has."""
    six = Path("/proc/net/if_inet6")
    has_six = six.exists() and f"{1:032x} " in six.read_text()
    return ["127.0.0.1", *(["::1"] if has_six else [])]


@pytest.mark.parametrize("address", ["0.0.0.0", "::"])
async def test_any_address_is_one_of_either_family(address: str) -> None:
    port = free_port()
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_http, await listen_tcp(address, port), hello)
        for host in loopbacks():
            await (await trio.open_tcp_stream(host, port)).aclose()
        nursery.cancel_scope.cancel()


async def test_an_address_is_that_one_alone() -> None:
    (listener,) = await listen_tcp("127.0.0.1", 0)
    assert listener.socket.getsockname()[0] == "127.0.0.1"
    await listener.aclose()


async def test_the_socket_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    before = os.umask(0)
    try:
        (listener,) = listen_unix(path)
    finally:
        os.umask(before)
    async with listener:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_requests_are_answered_on_it(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_http, listen_unix(path), hello)
        assert await ask(path) == "hello"
        nursery.cancel_scope.cancel()


async def test_a_handler_knows_which_process_asks(tmp_path: Path) -> None:
    peers = []

    async def remember(request: Request) -> Response:
        peers.append(request.peer)
        return Response()

    path = tmp_path / "agent.sock"
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_http, listen_unix(path), remember)
        await ask(path)
        nursery.cancel_scope.cancel()
    assert peers == [UnixPeer(os.getpid(), os.getuid(), os.getgid())]


async def test_a_socket_that_was_left_behind_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    (former,) = listen_unix(path)
    await former.aclose()
    assert path.is_socket()
    (listener,) = listen_unix(path)
    async with listener:
        (await trio.open_unix_socket(path)).socket.close()


async def test_a_socket_that_somebody_listens_on_is_left_to_him(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    (listener,) = listen_unix(path)
    async with listener:
        with pytest.raises(OSError, match="another process listens") as caught:
            listen_unix(path)
        assert caught.value.errno == errno.EADDRINUSE
        (await trio.open_unix_socket(path)).socket.close()


def test_what_is_no_socket_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    path.write_text("precious")
    with pytest.raises(FileExistsError):
        listen_unix(path)
    assert path.read_text() == "precious"


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        listen_unix(tmp_path / "no" / "agent.sock")


async def test_a_path_may_be_longer_than_an_address(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    for _ in range(2):
        (listener,) = listen_unix(folder / "agent.sock")
        await listener.aclose()
    assert (folder / "agent.sock").is_socket()


async def test_no_descriptor_is_left_behind(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    (listener,) = listen_unix(tmp_path / "agent.sock")
    with pytest.raises(OSError, match="another process"):
        listen_unix(tmp_path / "agent.sock")
    await listener.aclose()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
