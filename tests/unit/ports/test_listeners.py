"""What the agent answers, and to whom: its own socket, and the ports that ask nobody who he is."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import trio
from attrs import evolve

from lab.ports import free_port
from tests.trio_clock import TrioClock
from trio_kubelet import AGENT_SOCKET
from trio_kubelet.config import KubeletConfiguration, Settings
from trio_kubelet.config.model import NodeOptions
from trio_kubelet.debugging import LoopMeter
from trio_kubelet.ports.listeners import Listeners
from trio_kubelet.server import AnswerWriters
from trio_kubelet.sync.monitor import LoopMonitor
from trio_kubelet.telemetry import Journal


@asynccontextmanager
async def serving(root: Path) -> AsyncIterator[tuple[httpx.AsyncClient, httpx.AsyncClient]]:
    """A client of the agent's own socket and one of its read-only port."""
    port = free_port()
    configuration = evolve(KubeletConfiguration(), address="127.0.0.1", read_only_port=port)
    journal = Journal(TrioClock())
    journal.note("event", "default/web", "Started", "Container started")
    writers = AnswerWriters()
    listeners = Listeners(
        settings=Settings(configuration=configuration, options=NodeOptions(root_dir=str(root))),
        journal=journal,
        loop_meter=LoopMeter(),
        monitor=LoopMonitor(),
        writers=writers,
        pods=list,
    )
    own = httpx.AsyncHTTPTransport(uds=str(root / AGENT_SOCKET))
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writers.run)
            await nursery.start(listeners.serve_pods)
            async with (
                httpx.AsyncClient(base_url="http://agent", transport=own) as on_socket,
                httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as on_port,
            ):
                yield on_socket, on_port
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("path", ["/debug/journal", "/debug/journal/", "/debug/journal?pod=a/b"])
async def test_the_journal_is_told_on_the_agents_own_socket_alone(
    tmp_path: Path, path: str
) -> None:
    async with serving(tmp_path) as (on_socket, on_port):
        assert (await on_socket.get(path)).json()["dropped"] == 0
        assert (await on_port.get(path)).status_code == 404


@pytest.mark.parametrize("path", ["/pods", "/healthz"])
async def test_pods_and_health_are_told_on_both(tmp_path: Path, path: str) -> None:
    async with serving(tmp_path) as clients:
        assert [(await client.get(path)).status_code for client in clients] == [200, 200]
