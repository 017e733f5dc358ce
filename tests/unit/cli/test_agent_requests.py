"""What a person is told who asks an agent, above all one that does not answer."""

import http.server
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from trio_kubelet.cli.commands import commands


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(commands, words)
    return result.exit_code, result.stderr


@pytest.mark.parametrize("command", [("pods",), ("pods", "--watch"), ("timeline", "web")])
def test_where_no_agent_runs_one_line_says_so(command: tuple[str, ...], tmp_path: Path) -> None:
    code, words = run(*command, "--root-dir", str(tmp_path / "none"))
    assert code == 1
    assert words.startswith(f"Error: no agent runs here: there is no {tmp_path}/none/agent.sock")
    assert words.count("\n") == 1


def test_a_socket_that_was_left_behind_is_no_agent(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "agent.sock"))
    code, words = run("pods", "--root-dir", str(tmp_path))
    assert code == 1
    assert words.startswith(f"Error: no agent answers at {tmp_path}/agent.sock: ")


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "nonsense", "http://[", "ftp://x"])
def test_an_address_where_nobody_answers_is_named(url: str) -> None:
    code, words = run("pods", "--url", url)
    assert code == 1
    assert words.startswith(f"Error: no agent answers at {url}: ")


def test_json_cannot_be_watched() -> None:
    code, words = run("pods", "-o", "json", "--watch")
    assert code == 2
    assert "--watch shows tables" in words


class _Agent(http.server.ThreadingHTTPServer):
    """An agent without pods, which refuses the second request. `asked` is set by the third."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.requests = 0
        self.asked = threading.Event()


class _Request(http.server.BaseHTTPRequestHandler):
    server: _Agent

    def do_GET(self) -> None:
        self.server.requests += 1
        if self.server.requests == 2:
            self.send_error(503)
            return
        if self.server.requests > 2:
            self.server.asked.set()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"items": []}')

    def log_message(self, *_words: object) -> None:
        """Nothing."""


@contextmanager
def agent() -> Iterator[_Agent]:
    with _Agent() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def test_a_watch_asks_on_after_an_agent_was_away_and_ends_with_ctrl_c() -> None:
    with agent() as server:
        url = f"http://127.0.0.1:{server.server_address[1]}"
        # Who runs the tests in the background may ignore Ctrl-C, and so would the program.
        as_typed = ("env", "--default-signal=INT", sys.executable, "-m", "trio_kubelet")
        command = (*as_typed, "pods", "--watch", "--url", url)
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                assert server.asked.wait(60)
                process.send_signal(signal.SIGINT)
                shown, words = process.communicate(timeout=60)
            finally:
                process.kill()
    assert (process.returncode, words) == (0, "")
    assert "NAME" in shown
