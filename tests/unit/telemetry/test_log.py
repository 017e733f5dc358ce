"""The log: one line an entry, in both formats, without secrets and without ever waiting."""

import fcntl
import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from attrs import evolve

from trio_kubelet.config import Settings
from trio_kubelet.telemetry.log import (
    MOST_CHARACTERS,
    PatientWriter,
    configure_logging,
    is_journal,
    render_text,
    with_priority,
)
from trio_kubelet.telemetry.verbosity import set_verbosity


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    handlers, level = logging.root.handlers[:], logging.root.level
    configured_before = structlog.get_config()
    yield
    structlog.configure(**configured_before)
    logging.root.handlers[:], logging.root.level = handlers, level


def configured(*, log_format: str = "text", verbosity: int = 0) -> list[str]:
    lines: list[str] = []
    settings = Settings()
    options = evolve(settings.configuration.logging, format=log_format, verbosity=verbosity)
    settings = evolve(settings, configuration=evolve(settings.configuration, logging=options))
    configure_logging(settings, lines.append)
    return lines


def test_text_has_time_level_sentence_and_facts_in_one_line() -> None:
    entry = {"timestamp": 1769860800.25, "level": "info", "event": "pod admitted", "pod": "ns/web"}
    assert render_text(entry) == "2026-01-31T12:00:00.250Z INFO    pod admitted pod=ns/web"


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_long_values_are_cut(log_format: str) -> None:
    lines = configured(log_format=log_format)
    structlog.get_logger("x").info("said", message="x" * 10**6, names=["x" * 10**6], number=10**9)
    (line,) = lines
    assert len(line) < 3 * MOST_CHARACTERS
    assert "1000000000" in line


@pytest.mark.parametrize(
    ("level", "line"),
    [
        ("debug", "<7>2026-01-31T12:00:00.250Z DEBUG   said"),
        ("info", "<6>2026-01-31T12:00:00.250Z INFO    said"),
        ("warning", "<4>2026-01-31T12:00:00.250Z WARNING said"),
        ("error", "<3>2026-01-31T12:00:00.250Z ERROR   said"),
        ("critical", "<2>2026-01-31T12:00:00.250Z CRITICAL said"),
    ],
)
def test_a_line_for_the_journal_has_its_priority(level: str, line: str) -> None:
    entry = {"timestamp": 1769860800.25, "level": level, "event": "said"}
    assert with_priority(render_text)(entry) == line


def test_the_journal_is_the_stream_that_systemd_names() -> None:
    reading, writing = os.pipe()
    stream = os.fstat(writing)
    named = f"{stream.st_dev}:{stream.st_ino}"
    assert is_journal(writing, {"JOURNAL_STREAM": named})
    assert not is_journal(writing, {"JOURNAL_STREAM": f"{named}0"})
    assert not is_journal(writing, {})
    os.close(reading)
    os.close(writing)
    assert not is_journal(writing, {"JOURNAL_STREAM": named})


def test_values_with_spaces_and_newlines_stay_one_word() -> None:
    lines = configured()
    structlog.get_logger().warning("bad\nmanifest", reason="line 1\nline 2", empty="", plain=5)
    (line,) = lines
    assert line.endswith(r' WARNING bad\nmanifest reason="line 1\nline 2" empty="" plain=5')


def test_json_has_the_keys_of_klog() -> None:
    lines = configured(log_format="json")
    structlog.get_logger("sync").info("pod admitted", pod="ns/web", count=2)
    here = sys._getframe().f_lineno - 1
    entry = json.loads(lines[0])
    assert entry.pop("ts") > 1.7e12
    assert entry == {
        "level": "info",
        "logger": "sync",
        "caller": f"telemetry/test_log.py:{here}",
        "msg": "pod admitted",
        "v": 0,
        "pod": "ns/web",
        "count": 2,
    }


@pytest.mark.parametrize(("verbosity", "written"), [(0, False), (3, False), (4, True), (10, True)])
def test_debug_entries_are_written_from_verbosity_four(verbosity: int, written: bool) -> None:
    lines = configured(verbosity=verbosity, log_format="json")
    structlog.get_logger().debug("relist done")
    assert bool(lines) == written
    assert all(json.loads(line)["v"] == 4 for line in lines)


def test_verbosity_may_change_while_loggers_are_in_use() -> None:
    lines = configured(verbosity=2)
    log = structlog.get_logger()
    for verbosity in (2, 4, 2):
        set_verbosity(verbosity)
        log.debug("relist done", verbosity=verbosity)
    assert [line.rpartition("=")[2] for line in lines] == ["4"]


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_secrets_are_hidden(log_format: str) -> None:
    lines = configured(log_format=log_format)
    structlog.get_logger().info("pulled", token="hunter2", authorization="Bearer hunter2", raw=b"x")
    assert "hunter2" not in lines[0]
    assert "<hidden>" in lines[0]
    assert "<1 bytes>" in lines[0]


def test_an_exception_becomes_error_and_traceback_on_the_same_line() -> None:
    lines = configured(log_format="json")
    try:
        raise ValueError("no such pod")
    except ValueError:
        structlog.get_logger().exception("sync failed", pod="ns/web")
    entry = json.loads(lines[0])
    assert entry["err"] == "ValueError: no such pod"
    assert "test_log.py" in entry["traceback"]
    assert "v" not in entry


def test_warnings_of_libraries_come_along() -> None:
    lines = configured(log_format="json")
    logging.getLogger("grpclib").info("connected")
    logging.getLogger("grpclib").warning("connection lost: %s", "reset")
    (line,) = lines
    assert json.loads(line)["msg"] == "connection lost: reset"
    assert json.loads(line)["logger"] == "grpclib"
    assert json.loads(line)["caller"].startswith("telemetry/test_log.py:"), "not who forwards it"


def test_text_is_for_people_who_need_no_caller() -> None:
    lines = configured()
    logging.getLogger("grpclib").warning("connection lost")
    assert "test_log.py" not in lines[0]


def test_the_log_goes_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    configure_logging(Settings())
    structlog.get_logger().info("agent starts")
    captured = capfd.readouterr()
    assert captured.err.endswith(" INFO    agent starts\n")
    assert not captured.out


class Pipe:
    """A pipe whose reader can be made to sleep."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        fcntl.fcntl(self.writer, 1031, 4096)  # F_SETPIPE_SZ: a page

    def read(self) -> bytes:
        os.set_blocking(self.reader, False)
        read = b""
        while True:
            try:
                chunk = os.read(self.reader, 65536)
            except BlockingIOError:
                return read
            if not chunk:
                return read
            read += chunk


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    os.close(pipe.reader)
    os.close(pipe.writer)


def render(entry: Any) -> str:
    return f"{entry['event']} count={entry['count']}"


def test_a_reader_that_sleeps_holds_nobody_up_and_loses_nothing(pipe: Pipe) -> None:
    writer = PatientWriter(pipe.writer, render)
    sent = [f"{number:03} " + "x" * 996 for number in range(50)]
    for line in sent:
        writer.write(line)
    received = b""
    while len(received) < 50 * 1001:
        received += pipe.read()
        writer.flush(0)
    assert received.decode().splitlines() == sent


def test_a_log_is_stuck_from_when_its_reader_took_nothing(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    writer = PatientWriter(pipe.writer, render)
    now += 100
    writer.write("x" * 20_000)
    assert writer.seconds_stuck() == 0
    now += 40
    assert writer.seconds_stuck() == 40
    pipe.read()
    assert writer.seconds_stuck() == 0
    while pipe.read():
        writer.flush(0)
    now += 100
    assert writer.seconds_stuck() == 0


def test_entries_that_find_no_room_are_counted(pipe: Pipe) -> None:
    writer = PatientWriter(pipe.writer, render)
    for _ in range(10):
        writer.write("y" * 1024 * 1024)
    while pipe.read():
        writer.flush(0)
    writer.write("awake again")
    received = pipe.read()
    writer.flush(0)
    notice, last = (received + pipe.read()).decode().splitlines()
    assert notice.startswith("log entries were dropped")
    assert notice.endswith(" count=2")
    assert last == "awake again"


def test_a_reader_that_is_gone_is_no_error() -> None:
    reader, write_end = os.pipe()
    os.close(reader)
    PatientWriter(write_end, render).write("anyone?")
    os.close(write_end)
