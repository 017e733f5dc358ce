"""Names that probes ask for: looked up beside the loop, and one that hangs holds up few."""

import socket
import threading
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from tests.unit.pod_clients.servers import LOOPBACK, answer, http, serving
from trio_kubelet.pod_clients.dial import (
    LOOKUPS_OF_A_NAME,
    LOOKUPS_OF_A_NAME_BY_A_NAMESPACE,
    LOOKUPS_OF_A_NAMESPACE,
    LOOKUPS_OF_A_POD,
    Dialer,
    DialError,
)
from trio_kubelet.pod_clients.share import ProbeShare

PATIENCE_SECONDS = 30
SERVE = answer(http(200))


class NameServer:
    """Answers for every name that this is the host; for those that begin with `hangs` it hangs."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.threads: set[int] = set()
        self.ends = threading.Event()
        self._known = socket.getaddrinfo

    def look_up(self, host: str, *args: object, **kwargs: object) -> object:
        """Stand in for `socket.getaddrinfo`."""
        self.asked.append(host)
        self.threads.add(threading.get_ident())
        if host.startswith("hangs"):
            self.ends.wait(2 * PATIENCE_SECONDS)
        return self._known(LOOPBACK, *args, **kwargs)  # type: ignore[arg-type]

    async def wait_hanging(self, count: int) -> None:
        """Wait until so many lookups hang."""
        with trio.fail_after(PATIENCE_SECONDS):
            while self.hanging < count:
                await trio.lowlevel.checkpoint()

    @property
    def hanging(self) -> int:
        """The number of lookups that hang."""
        return sum(host.startswith("hangs") for host in self.asked)


@pytest.fixture
def name_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServer]:
    server = NameServer()
    monkeypatch.setattr(socket, "getaddrinfo", server.look_up)
    yield server
    server.ends.set()


async def connect(dialer: Dialer, host: str, port: int, share: ProbeShare) -> None:
    """Make a connection in time, and close it."""
    with trio.fail_after(PATIENCE_SECONDS):
        (await dialer.dial(host, port, share)).close()


async def test_a_name_is_looked_up_beside_the_loop(name_server: NameServer) -> None:
    async with serving(SERVE) as port:
        name_server.threads.clear()
        await connect(Dialer(), "web.example", port, ProbeShare())
    assert "web.example" in name_server.asked
    assert threading.get_ident() not in name_server.threads


@pytest.mark.parametrize(
    ("namespaces", "lookups"),
    [(1, LOOKUPS_OF_A_NAME_BY_A_NAMESPACE), (20, LOOKUPS_OF_A_NAME)],
)
async def test_a_name_whose_lookup_hangs_holds_up_no_other(
    name_server: NameServer, namespaces: int, lookups: int
) -> None:
    dialer = Dialer()
    async with serving(SERVE) as port, trio.open_nursery() as nursery:
        for number in range(100):
            share = ProbeShare(f"uid-{number % 20}", f"namespace-{number % namespaces}")
            nursery.start_soon(dialer.dial, "hangs.example", port, share)
        await name_server.wait_hanging(lookups)
        await connect(dialer, "web.example", port, ProbeShare("other", "namespace-0"))
        nursery.cancel_scope.cancel()
    assert name_server.hanging == lookups


@pytest.mark.parametrize(("pods", "lookups"), [(1, LOOKUPS_OF_A_POD), (50, LOOKUPS_OF_A_NAMESPACE)])
async def test_names_that_hang_take_no_more_threads_than_their_pods_have(
    name_server: NameServer, pods: int, lookups: int
) -> None:
    dialer = Dialer()
    hostile = [ProbeShare(f"hostile-{number}", "hostile") for number in range(pods)]
    async with serving(SERVE) as port, trio.open_nursery() as nursery:
        for number in range(100):
            share = hostile[number % pods]
            nursery.start_soon(dialer.dial, f"hangs-{number}.example", port, share)
        await name_server.wait_hanging(lookups)
        await connect(dialer, "web.example", port, ProbeShare("good", "good"))
        nursery.cancel_scope.cancel()
    assert name_server.hanging == lookups


async def test_a_pod_whose_lookups_hang_holds_no_name_that_others_ask_for(
    name_server: NameServer,
) -> None:
    dialer, hostile = Dialer(), ProbeShare("hostile", "n")
    async with serving(SERVE) as port, trio.open_nursery() as nursery:
        for _ in range(LOOKUPS_OF_A_POD):
            nursery.start_soon(dialer.dial, "hangs.example", port, hostile)
        await name_server.wait_hanging(LOOKUPS_OF_A_POD)
        for _ in range(2 * LOOKUPS_OF_A_NAME):
            nursery.start_soon(dialer.dial, "shared.example", port, hostile)
        await trio.testing.wait_all_tasks_blocked()
        await connect(dialer, "shared.example", port, ProbeShare("good", "n"))
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("namespaces", [1, 2, 5])
async def test_namespaces_whose_lookups_hang_leave_some_to_others_also_of_a_name(
    name_server: NameServer, namespaces: int
) -> None:
    dialer = Dialer()
    hostile = [f"hostile-{number}" for number in range(namespaces)]
    async with serving(SERVE) as port, trio.open_nursery() as nursery:
        for namespace in hostile:
            for number in range(LOOKUPS_OF_A_NAMESPACE):
                share = ProbeShare(f"{namespace}-{number}", namespace)
                nursery.start_soon(dialer.dial, f"hangs-{share.uid}.example", port, share)
        await name_server.wait_hanging(min(namespaces, 2) * LOOKUPS_OF_A_NAMESPACE)
        for namespace in hostile:
            for number in range(2 * LOOKUPS_OF_A_NAME):
                share = ProbeShare(f"{namespace}-more-{number}", namespace)
                nursery.start_soon(dialer.dial, "shared.example", port, share)
        await trio.testing.wait_all_tasks_blocked()
        await connect(dialer, "shared.example", port, ProbeShare("good", "good"))
        nursery.cancel_scope.cancel()


async def test_a_lookup_for_which_no_thread_can_be_started_says_nothing_of_the_container(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trio.to_thread, "run_sync", no_thread)
    with pytest.raises(DialError, match="can't start new thread") as caught:
        await Dialer().dial("web.example", 80, ProbeShare())
    assert caught.value.is_local


async def no_thread(*_: object, **__: object) -> None:
    await trio.lowlevel.checkpoint()
    raise RuntimeError("can't start new thread")
