"""`kubectl exec`, `cp`, `attach` and `port-forward` through the API server."""

import fcntl
import hashlib
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lab import LabError
from lab.images import BUSYBOX
from lab.ports import free_port
from lab.processes import wait_until
from tests.e2e.cluster import Namespace, is_ready, shell, until_term

MEBIBYTES = int(os.environ.get("TRIO_KUBELET_E2E_MEBIBYTES", "20"))
DOWNLOADS = 20


@pytest.fixture(params=["true", "false"], ids=["websocket", "spdy"])
def protocol(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What kubectl speaks with the API server."""
    value: str = request.param
    monkeypatch.setenv("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", value)
    monkeypatch.setenv("KUBECTL_PORT_FORWARD_WEBSOCKETS", value)
    return value


def test_commands_run_with_streams_and_exit_codes(namespace: Namespace, protocol: str) -> None:
    namespace.add("box", until_term("c"))
    namespace.wait("box", is_ready)
    said = namespace.kubectl("exec", "box", "--", "sh", "-c", "echo out; echo err >&2")
    assert said == "out\n"
    given = "".join(f"{number}\n" for number in range(100_000))
    assert namespace.kubectl("exec", "-i", "box", "--", "cat", stdin=given) == given
    with pytest.raises(LabError, match="exit code 7"):
        namespace.kubectl("exec", "box", "--", "sh", "-c", "exit 7")


def test_a_terminal_has_the_size_of_its_window(namespace: Namespace, protocol: str) -> None:
    namespace.add("box", until_term("c"))
    namespace.wait("box", is_ready)
    keyboard, screen = pty.openpty()
    _resize(keyboard, 30, 90)
    command = namespace.kubectl_command("exec", "-it", "box", "--", "sh")
    with subprocess.Popen(
        command, stdin=screen, stdout=screen, stderr=screen, start_new_session=True
    ) as shell_in_box:
        os.close(screen)
        try:
            _type_until(keyboard, b"stty size; tty\n", b"30 90\r\n/dev/pts/")
            _resize(keyboard, 50, 120)
            shell_in_box.send_signal(signal.SIGWINCH)
            _type_until(keyboard, b"stty size\n", b"50 120\r\n")
            os.write(keyboard, b"exit 3\n")
            assert shell_in_box.wait(60) == 3
        finally:
            shell_in_box.kill()
            os.close(keyboard)


def _resize(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _type_until(terminal: int, text: bytes, wanted: bytes) -> None:
    """Type a line again and again, for a new size may take a while, until this is shown."""
    shown = b""

    def look() -> bool:
        nonlocal shown
        os.write(terminal, text)
        while select.select([terminal], [], [], 0.5)[0]:
            shown += os.read(terminal, 4096)
        return wanted in shown

    wait_until(look, deadline_seconds=60, else_say=lambda: f"the terminal shows {shown!r}")


def test_files_are_copied_both_ways(namespace: Namespace, protocol: str, tmp_path: Path) -> None:
    namespace.add("box", until_term("c"))
    namespace.wait("box", is_ready)
    there, back = tmp_path / "there", tmp_path / "back"
    there.write_bytes(os.urandom(MEBIBYTES << 20))
    wanted = hashlib.sha256(there.read_bytes()).hexdigest()
    namespace.kubectl("cp", str(there), "box:/tmp/file")
    assert namespace.kubectl("exec", "box", "--", "sha256sum", "/tmp/file").split()[0] == wanted
    namespace.kubectl("cp", "box:/tmp/file", str(back))
    assert hashlib.sha256(back.read_bytes()).hexdigest() == wanted


def test_a_port_of_a_pod_is_forwarded(namespace: Namespace, protocol: str) -> None:
    serve = "mkdir /www; seq 100000 >/www/page; httpd -p 8080 -h /www"
    namespace.add("web", until_term("c", serve))
    namespace.wait("web", is_ready)
    port = free_port()
    command = namespace.kubectl_command("port-forward", "pod/web", f"{port}:8080")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as forwarding:
        try:
            assert forwarding.stdout is not None
            assert "Forwarding from" in forwarding.stdout.readline()
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            expected = "".join(f"{number}\n" for number in range(1, 100_001)).encode()

            def download(_: int) -> bytes:
                with opener.open(f"http://127.0.0.1:{port}/page", timeout=60) as page:
                    found: bytes = page.read()
                return found

            with ThreadPoolExecutor(DOWNLOADS) as pool:
                assert set(pool.map(download, range(DOWNLOADS))) == {expected}
        finally:
            forwarding.terminate()


def test_who_attaches_sees_what_is_printed(namespace: Namespace, protocol: str) -> None:
    script = "read word; echo you said $word"
    box = shell("c", script, stdin=True, stdinOnce=True)
    namespace.add("asks", box, restartPolicy="Never")
    namespace.wait("asks", is_ready)
    namespace.kubectl("attach", "-i", "asks", stdin="hello\n")

    def said() -> bool:
        return "you said hello" in namespace.kubectl("logs", "asks")

    wait_until(said, deadline_seconds=60, else_say=lambda: namespace.kubectl("logs", "asks"))


def test_a_debug_container_shares_what_its_target_has(namespace: Namespace) -> None:
    namespace.add("box", until_term("c"))
    namespace.wait("box", is_ready)
    target = ("--image", BUSYBOX, "--container", "debugger", "--target", "c")
    words = ("--", "sh", "-c", "cat /proc/*/cmdline | tr '\\0' ' '; echo; echo seen")
    namespace.kubectl("debug", "box", *target, "--attach=false", *words)

    def said() -> bool:
        try:
            return "seen" in namespace.kubectl("logs", "box", "-c", "debugger")
        except LabError:  # It has not been started yet.
            return False

    wait_until(said, deadline_seconds=60, else_say=lambda: str(namespace.pod("box")["status"]))
    assert "sleep 1000000" in namespace.kubectl("logs", "box", "-c", "debugger")
