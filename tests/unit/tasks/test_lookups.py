"""Names are looked up in threads that nothing else waits for."""

import socket
import threading
from typing import Any

import pytest
import trio

from trio_kubelet.tasks.lookups import LOOKUPS, HostLookups, looking_up_with

NAME = "api.test"


class NameServer:
    """A name server that hangs until it is told to answer."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        self.answers = threading.Event()
        self._look_up = socket.getaddrinfo

    def look_up(self, host: str | bytes | None, *query: Any, **options: Any) -> Any:
        if host != NAME.encode():
            return self._look_up(host, *query, **options)
        self.asked.release()
        self.answers.wait()
        return self._look_up("127.0.0.1", *query, **options)


@pytest.fixture
def name_server(monkeypatch: pytest.MonkeyPatch) -> NameServer:
    server = NameServer()
    monkeypatch.setattr(socket, "getaddrinfo", server.look_up)
    return server


async def look_up() -> str:
    found = await trio.socket.getaddrinfo(NAME, 443, type=socket.SOCK_STREAM)
    return str(found[0][4][0])


async def test_lookups_that_hang_leave_the_threads_of_other_work_alone(
    name_server: NameServer,
) -> None:
    trio.socket.set_custom_hostname_resolver(HostLookups())
    shared = trio.to_thread.current_default_thread_limiter()
    apart = trio.CapacityLimiter(1)
    async with trio.open_nursery() as nursery:
        for _ in range(LOOKUPS + int(shared.total_tokens)):
            nursery.start_soon(look_up)
        with trio.fail_after(60):
            for _ in range(LOOKUPS):
                await trio.to_thread.run_sync(name_server.asked.acquire)
        assert shared.borrowed_tokens == 0
        with looking_up_with(apart):
            nursery.start_soon(look_up)
        with trio.fail_after(60):
            await trio.to_thread.run_sync(name_server.asked.acquire)
        assert apart.borrowed_tokens == 1
        nursery.cancel_scope.cancel()
    name_server.answers.set()


async def test_a_name_is_looked_up(name_server: NameServer) -> None:
    trio.socket.set_custom_hostname_resolver(HostLookups())
    name_server.answers.set()
    with trio.fail_after(60):
        assert await look_up() == "127.0.0.1"
