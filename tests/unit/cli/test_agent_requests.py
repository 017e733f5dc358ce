"""What a person is told who asks an agent that does not answer."""

import socket
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
