import gzip
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from tests.unit.sources.manifest_texts import NODE, manifest
from trio_kubelet.k8s import Pod
from trio_kubelet.sources import ManifestContext, watch_manifest_url
from trio_kubelet.sources.manifest_source import StaticPodSet
from trio_kubelet.sources.manifests import (
    MAX_MANIFEST_BYTES,
    Manifest,
    ManifestReader,
    adopt_running,
)
from trio_kubelet.tasks.clock import SystemClock
from trio_kubelet.tasks.lookups import HostLookups
from trio_kubelet.telemetry import Journal

URL = "http://manifests.test/pods"


class Server:
    """Answers with what it was given, and remembers what it was asked."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.body = b""
        self.status = 200
        self.headers: dict[str, str] = {}
        self.down = False
        self.requests: list[httpx.Request] = []
        self.journal = Journal(SystemClock())
        self.sets, self._receive = trio.open_memory_channel[tuple[Pod, ...]](100)

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if self.down:
            raise httpx.ConnectError("connection refused")
        return httpx.Response(self.status, headers=self.headers, content=self.body)

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.watch, self.client())
            yield
            nursery.cancel_scope.cancel()

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.MockTransport(self.answer))

    def context(self) -> ManifestContext:
        return ManifestContext(
            node_name=NODE,
            kept_folder=self.root / "static-pods",
            adopt=lambda: adopt_running(()),
            journal=self.journal,
        )

    async def watch(
        self, client: httpx.AsyncClient | None, context: ManifestContext | None = None
    ) -> None:
        await watch_manifest_url(
            URL,
            self.sets.send,
            context or self.context(),
            headers={"X-Token": ("one", "two")},
            check_seconds=0.001,
            client=client,
        )

    async def pods(self) -> tuple[Pod, ...]:
        with trio.fail_after(60):
            return await self._receive.receive()

    async def names(self) -> list[str]:
        return [pod.metadata.name.removesuffix(f"-{NODE}") for pod in await self.pods()]

    async def asked_again(self, times: int = 2) -> None:
        """Wait until so many more requests have begun: those before were dealt with."""
        wanted = len(self.requests) + times
        with trio.fail_after(60):
            while len(self.requests) < wanted:
                await trio.lowlevel.checkpoint()

    def told(self) -> list[tuple[str, str]]:
        return [(entry.event, entry.cause) for entry in self.journal.entries()]


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


async def test_pods_come_from_a_manifest_or_a_list(server: Server) -> None:
    server.body = manifest("web").encode()
    async with server.watched():
        (pod,) = await server.pods()
        assert pod.metadata.name == "web-node-1"
        assert pod.spec.tolerations == ()
        server.body = (
            b'{"apiVersion": "v1", "kind": "PodList", "items": ['
            b'{"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "image": "i"}]}},'
            b'{"metadata": {"name": "b"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}]}'
        )
        assert await server.names() == ["a", "b"]


async def test_the_same_answer_changes_nothing(server: Server) -> None:
    server.body = manifest("web").encode()
    async with server.watched():
        await server.pods()
        await server.asked_again(3)
        assert server.sets.statistics().current_buffer_used == 0


async def test_every_header_is_sent(server: Server) -> None:
    async with server.watched():
        await server.pods()
    assert server.requests[0].headers.get_list("X-Token") == ["one", "two"]


async def test_an_empty_answer_is_an_empty_set(server: Server) -> None:
    async with server.watched():
        assert await server.names() == []
        server.body = manifest("web").encode()
        assert await server.names() == ["web"]
        server.body = b""
        assert await server.names() == []


@pytest.mark.parametrize(("status", "reason"), [(500, "Internal Server Error"), (404, "Not Found")])
async def test_a_failing_answer_leaves_the_pods_alone_and_is_told_once(
    server: Server, status: int, reason: str
) -> None:
    server.body = manifest("web").encode()
    async with server.watched():
        await server.pods()
        server.status = status
        await server.asked_again(3)
        assert server.sets.statistics().current_buffer_used == 0
        assert server.told() == [
            ("Rejected", f"cannot be fetched: _BadAnswerError: {status} {reason}")
        ]


async def test_a_server_that_is_down_is_waited_for(server: Server) -> None:
    server.down = True
    server.body = manifest("web").encode()
    async with server.watched():
        await server.asked_again(2)
        assert server.sets.statistics().current_buffer_used == 0
        server.down = False
        assert await server.names() == ["web"]
        await server.asked_again(1)
    assert server.told() == [
        ("Rejected", "cannot be fetched: ConnectError: connection refused"),
        ("Mended", ""),
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ALL_PROXY", "gopher://proxy.test:70"),
        ("ALL_PROXY", "socks5://127.0.0.1:0"),
        ("SSL_CERT_FILE", "/no/such/file"),
    ],
)
async def test_an_environment_that_allows_no_client_is_told_of(
    server: Server, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    server.body = manifest("web").encode()
    async with server.watched():
        before = await server.pods()
        await server.asked_again(1)
    monkeypatch.setenv(name, value)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.watch, None)
        assert await server.pods() == before
        with trio.fail_after(60):
            while not server.told():
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    ((event, cause),) = server.told()
    assert event == "Rejected"
    assert cause.startswith("cannot be fetched: ")


async def test_a_name_is_looked_up_in_threads_for_places_that_may_hang(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, asked, may_end = server.context(), threading.Event(), threading.Event()
    look_up = socket.getaddrinfo

    def hang(host: str | bytes | None, *query: Any, **options: Any) -> Any:
        if host == b"manifests.test":
            asked.set()
            may_end.wait()
            raise socket.gaierror(socket.EAI_AGAIN, "hangs")
        return look_up(host, *query, **options)

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    trio.socket.set_custom_hostname_resolver(HostLookups())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.watch, None, context)
        with trio.fail_after(60):
            await trio.to_thread.run_sync(asked.wait, 60)
        assert context.looks.borrowed_tokens == 1
        nursery.cancel_scope.cancel()
    assert context.looks.borrowed_tokens == 1  # Until the C library gives up.
    may_end.set()


async def test_pods_of_an_earlier_run_go_on_while_the_server_is_down(server: Server) -> None:
    server.body = manifest("web").encode()
    async with server.watched():
        before = await server.pods()
        await server.asked_again(1)
    server.down = True
    async with server.watched():
        assert await server.pods() == before


async def test_a_body_that_became_bad_leaves_its_pods_running(server: Server) -> None:
    server.body = manifest("web").encode()
    async with server.watched():
        await server.pods()
        server.body = b"kind: Pod"
        await server.asked_again(3)
        assert server.sets.statistics().current_buffer_used == 0
        assert [event for event, _ in server.told()] == ["Rejected"]
        server.body = manifest("other").encode()
        assert await server.names() == ["other"]


async def test_a_body_that_is_too_large_is_refused(server: Server) -> None:
    server.body = b"#" * (MAX_MANIFEST_BYTES + 5)
    async with server.watched():
        assert await server.names() == []
        await server.asked_again()
    assert server.told() == [("Rejected", "is larger than 10 MiB")]


async def test_an_answer_that_is_compressed_is_not_expanded(server: Server) -> None:
    server.headers["Content-Encoding"] = "gzip"
    server.body = gzip.compress(manifest("web").encode())
    async with server.watched():
        await server.asked_again()
    assert server.requests[0].headers["Accept-Encoding"] == "identity"
    assert server.told() == [
        (
            "Rejected",
            "cannot be fetched: _BadAnswerError: the answer is encoded, which was not asked for: "
            "gzip",
        )
    ]


async def test_an_answer_that_it_stumbles_over_is_asked_for_again(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, errors = ManifestReader.read, iter([RuntimeError("a bug")])

    def failing_once(self: ManifestReader, origin: str, data: bytes) -> Manifest:
        if origin == URL:
            for error in errors:
                raise error
        return read(self, origin, data)

    monkeypatch.setattr(ManifestReader, "read", failing_once)
    server.body = manifest("web").encode()
    async with server.watched():
        assert await server.names() == ["web"]


async def test_a_bug_while_a_failure_is_dealt_with_ends_nothing(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stumble(*_: object) -> float:
        raise RuntimeError("a bug")

    monkeypatch.setattr(StaticPodSet, "take_trouble", stumble)
    server.body = manifest("web").encode()
    server.down = True
    async with server.watched():
        await server.asked_again()
        server.down = False
        assert await server.names() == ["web"]
