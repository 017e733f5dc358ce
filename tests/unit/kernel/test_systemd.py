"""sd_notify with real sockets: in the file system and abstract ones."""

import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import structlog

from trio_kubelet.kernel.systemd import ServiceNotifier, watchdog_seconds


def listen(address: str) -> socket.socket:
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(address)
    manager.setblocking(False)
    return manager


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """A service manager at the path `notify`."""
    with closing(listen(str(tmp_path / "notify"))) as manager:
        yield manager


@pytest.fixture
def notifier(tmp_path: Path, manager: socket.socket) -> ServiceNotifier:
    return ServiceNotifier({"NOTIFY_SOCKET": str(tmp_path / "notify")})


def heard(manager: socket.socket) -> list[str]:
    messages = []
    while True:
        try:
            messages.append(manager.recv(4096).decode())
        except BlockingIOError:
            return messages


def crowd(notifier: ServiceNotifier) -> None:
    """Send until the manager's socket takes no more."""
    with structlog.testing.capture_logs() as logs:
        for _ in range(10_000):
            notifier.alive()
            if logs:
                break
    assert "service manager notification failed" in {entry["event"] for entry in logs}


def test_each_message_is_one_datagram(notifier: ServiceNotifier, manager: socket.socket) -> None:
    notifier.ready()
    notifier.status("running")
    notifier.alive()
    notifier.stopping()
    assert heard(manager) == ["READY=1", "STATUS=running", "WATCHDOG=1", "STOPPING=1"]


def test_an_abstract_socket_is_reached() -> None:
    name = f"trio-kubelet-test-{os.getpid()}"
    with closing(listen(f"\0{name}")) as manager:
        ServiceNotifier({"NOTIFY_SOCKET": f"@{name}"}).ready()
        assert heard(manager) == ["READY=1"]


def test_a_status_is_told_when_it_changes(
    notifier: ServiceNotifier, manager: socket.socket
) -> None:
    for text in ("waiting", "waiting", "running", "waiting"):
        notifier.status(text)
    assert heard(manager) == ["STATUS=waiting", "STATUS=running", "STATUS=waiting"]


def test_a_status_cannot_smuggle_in_another_message(
    notifier: ServiceNotifier, manager: socket.socket
) -> None:
    notifier.status("no runtime:\nREADY=1\n")
    assert heard(manager) == ["STATUS=no runtime: READY=1"]


@pytest.mark.parametrize("address", ["", "vsock:2:1234", "relative/path"])
def test_without_a_socket_of_this_machine_nothing_is_sent(address: str) -> None:
    notifier = ServiceNotifier({"NOTIFY_SOCKET": address})
    with structlog.testing.capture_logs() as logs:
        notifier.ready()
    assert logs == []


def test_a_manager_that_is_not_there_is_complained_about_once(tmp_path: Path) -> None:
    notifier = ServiceNotifier({"NOTIFY_SOCKET": str(tmp_path / "nobody")})
    with structlog.testing.capture_logs() as logs:
        notifier.ready()
        notifier.alive()
    assert [entry["event"] for entry in logs] == ["service manager notification failed"]


def test_a_manager_that_does_not_read_holds_nobody_up(
    notifier: ServiceNotifier, manager: socket.socket
) -> None:
    crowd(notifier)
    assert heard(manager)
    notifier.ready()
    assert heard(manager) == ["READY=1"]


def test_what_a_busy_manager_could_not_take_comes_with_the_next_message(
    notifier: ServiceNotifier, manager: socket.socket
) -> None:
    crowd(notifier)
    notifier.ready()
    notifier.status("waiting")
    notifier.status("running")
    notifier.alive()
    assert not {"READY=1", "STATUS=running"} & set(heard(manager))
    notifier.alive()
    assert heard(manager) == ["READY=1\nSTATUS=running\nWATCHDOG=1"]
    notifier.alive()
    assert heard(manager) == ["WATCHDOG=1"]


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": str(os.getpid())}, 0.5),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "-5"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdog_period_is_read_from_the_environment(
    environment: dict[str, str], seconds: float | None
) -> None:
    assert watchdog_seconds(environment) == seconds
