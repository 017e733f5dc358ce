"""`/logs/`: what is below the folder, what is not, and the journal."""

import os
import re
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.server.serving import open_files
from trio_kubelet.logs import system_logs
from trio_kubelet.logs.journal import SystemdJournal
from trio_kubelet.logs.query import LogQuery, log_query
from trio_kubelet.logs.system_logs import QUERIES, SystemLogs, system_log_routes
from trio_kubelet.server import Request, RequestError, Response, route_requests
from trio_kubelet.server.messages import Headers, Values

JOURNAL = """#!/bin/sh
case "$1" in --field) printf 'kubelet.service\\nbroken.service\\nx.timer\\n'; exit;; esac
case "$*" in *broken*) echo out; echo oops >&2; exit 3;; esac
for word; do echo "$word"; done
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "log"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    (folder / "a.log").write_text("hello\n")
    (folder / "sub" / "b.log").write_text("below\n")
    (folder / "packed").write_bytes(bytes(range(256)))
    (folder / "page").write_text("<script>alert(1)</script>")
    (folder / "inside").symlink_to("sub/b.log")
    (folder / "absolute").symlink_to(folder / "a.log")
    (folder / "outside").symlink_to("../secret")
    (folder / "elsewhere").symlink_to(tmp_path)
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe")
    return folder


@pytest.fixture
def journal(tmp_path: Path) -> SystemdJournal:
    program = tmp_path / "journalctl"
    program.write_text(JOURNAL)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return SystemdJournal(str(program))


async def get(
    logs: SystemLogs, path: str, range_: str = "", **query: str
) -> tuple[Response, bytes]:
    headers = Headers((("Range", range_),)) if range_ else Headers()
    request = Request(
        method="GET", path=f"/logs/{path}", query=Values(tuple(query.items())), headers=headers
    )
    response = await route_requests(system_log_routes(logs))(request)
    assert response is not None
    if isinstance(response.body, bytes):
        return response, response.body
    return response, b"".join([piece async for piece in response.body])


@pytest.mark.parametrize(
    ("path", "kind", "body"),
    [
        ("a.log", "text/plain; charset=utf-8", b"hello\n"),
        ("inside", "text/plain; charset=utf-8", b"below\n"),
        ("absolute", "text/plain; charset=utf-8", b"hello\n"),
        ("sub/b.log", "text/plain; charset=utf-8", b"below\n"),
        ("packed", "application/octet-stream", bytes(range(256))),
        ("page", "text/plain; charset=utf-8", b"<script>alert(1)</script>"),
    ],
)
async def test_a_file_is_sent(root: Path, path: str, kind: str, body: bytes) -> None:
    response, sent = await get(SystemLogs(queries=False, root=root), path)
    assert (response.status, response.content_type, sent) == (200, kind, body)


async def test_a_part_of_a_file_is_sent(root: Path) -> None:
    response, sent = await get(SystemLogs(queries=False, root=root), "a.log", "bytes=1-3")
    assert (response.status, sent) == (206, b"ell")
    assert ("Content-Range", "bytes 1-3/6") in response.headers


async def test_a_folder_is_a_page_of_links(root: Path) -> None:
    (root / "sub" / "<i> &:").touch()
    response, page = await get(SystemLogs(queries=False, root=root), "sub/")
    assert response.content_type == "text/html; charset=utf-8"
    assert page == (
        b'<!doctype html>\n<meta name="viewport" content="width=device-width">\n<pre>\n'
        b'<a href="./%3Ci%3E%20&amp;:">&lt;i&gt; &amp;:</a>\n<a href="b.log">b.log</a>\n</pre>\n'
    )


async def test_a_symlink_that_leads_nowhere_hides_nothing(root: Path) -> None:
    _, page = await get(SystemLogs(queries=False, root=root), "")
    names = re.findall(rb">([^<]+)</a>", page)
    assert names == b"a.log absolute elsewhere/ inside loop outside packed page pipe sub/".split()


@pytest.mark.parametrize(
    ("path", "location"),
    [
        ("sub", "sub/"),
        ("a.log/", "../a.log"),
        ("h\u00e4 %/\u2603", "%E2%98%83/"),
        ("a:b", "./a:b/"),
        ("b:\n/", "../b:%0A"),
    ],
)
async def test_a_slash_at_the_end_is_for_folders(root: Path, path: str, location: str) -> None:
    (root / "h\u00e4 %" / "\u2603").mkdir(parents=True)
    (root / "a:b").mkdir()
    (root / "b:\n").touch()
    response, _ = await get(SystemLogs(queries=False, root=root), path)
    assert (response.status, response.headers) == (301, (("Location", location),))


@pytest.mark.parametrize(
    "path",
    [
        *("nope", "outside", "elsewhere/", "elsewhere/secret", "elsewhere/log/a.log/x", "loop"),
        *("pipe", "a.log/b", "a\0b", "/etc/hostname", "sub/\udcff", "x" * 256, "x/" * 4096),
    ],
)
async def test_nothing_leads_out_of_the_folder(root: Path, path: str) -> None:
    descriptors = open_files()
    logs = SystemLogs(queries=True, root=root)
    with pytest.raises(RequestError) as refused:
        await logs.answer(Request(method="GET", path="", parameters={"path": path}))
    assert (refused.value.status, str(refused.value)) == (404, "404 page not found")
    with pytest.raises(RequestError) as refused:
        await get(logs, "", query=f"sub/../{path}")
    assert refused.value.status == 406
    assert open_files() == descriptors


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"query": "kubelet"}, b"--utc\n--no-pager\n--output=short-precise\n--unit=kubelet\n"),
        ({"query": "broken"}, b"out\noops\n"),
        ({"query": "a"}, b"hello\n"),
        ({"query": "a.log"}, b"hello\n"),
        ({"query": "x"}, b"\nlog not found for x\n"),
        ({"query": "outside"}, b"\nerror getting log for outside: path escapes from parent\n"),
        ({"query": "sub/b.log"}, b"below\n"),
        (
            {"query": "a", "boot": "0"},
            b"\noptions present and query resolved to log files for [a]\n"
            b"try without specifying options\n",
        ),
    ],
)
async def test_a_query_is_answered_by_the_journal_or_by_files(
    root: Path, journal: SystemdJournal, query: dict[str, str], said: bytes
) -> None:
    _, sent = await get(SystemLogs(queries=True, root=root, journal=journal), "", **query)
    assert sent == said


async def test_only_a_few_queries_are_answered_at_once(root: Path, journal: SystemdJournal) -> None:
    logs = SystemLogs(queries=True, root=root, journal=journal)
    request = Request(
        method="GET",
        path="/logs/",
        query=Values((("query", "kubelet"),)),
        parameters={"path": ""},
    )
    answers = [await logs.answer(request) for _ in range(QUERIES)]
    with pytest.raises(RequestError) as refused:
        await logs.answer(request)
    assert refused.value.status == 429
    for each in answers:
        assert not isinstance(each.body, bytes)
        await each.body.aclose()
    assert (await get(logs, "", query="a"))[1] == b"hello\n"


async def test_without_a_journal_there_are_files(root: Path) -> None:
    logs = SystemLogs(queries=True, root=root, journal=SystemdJournal("/nowhere/journalctl"))
    assert (await get(logs, "", query="a"))[1] == b"hello\n"


async def test_a_query_is_none_where_the_gate_is_off(root: Path, journal: SystemdJournal) -> None:
    logs = SystemLogs(queries=False, root=root, journal=journal)
    assert (await get(logs, "a.log", query="kubelet"))[1] == b"hello\n"


async def test_a_query_names_no_path_beside(root: Path) -> None:
    with pytest.raises(RequestError, match="path not allowed in query mode"):
        await get(SystemLogs(queries=True, root=root), "a.log", query="kubelet")


@pytest.mark.parametrize("shorten", [lambda file: file.write_bytes(b""), Path.unlink])
async def test_a_file_that_becomes_shorter_ends_there(
    root: Path, shorten: Callable[[Path], object]
) -> None:
    descriptors = open_files()
    response = await SystemLogs(queries=False, root=root).answer(
        Request(method="GET", path="", parameters={"path": "a.log"})
    )
    shorten(root / "a.log")
    assert not isinstance(response.body, bytes)
    assert b"".join([piece async for piece in response.body]) in (b"", b"hello\n")
    assert open_files() == descriptors


async def test_a_client_that_does_not_read_holds_a_query_no_longer_than_its_time(
    root: Path, journal: SystemdJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = SystemLogs(queries=True, root=root, journal=journal)
    request = Request(
        method="GET",
        path="/logs/",
        query=Values((("query", "kubelet"),)),
        parameters={"path": ""},
    )
    monkeypatch.setattr("trio_kubelet.logs.journal.QUERY_SECONDS", 0.0)
    answers = [await logs.answer(request) for _ in range(3 * QUERIES)]
    for each in answers:
        assert not isinstance(each.body, bytes)
        await each.body.aclose()


async def test_a_pattern_is_understood_in_a_thread(
    root: Path, journal: SystemdJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[threading.Thread] = []

    def read(query: Values) -> LogQuery:
        readers.append(threading.current_thread())
        return log_query(query)

    monkeypatch.setattr(system_logs, "log_query", read)
    logs = SystemLogs(queries=True, root=root, journal=journal)
    await get(logs, "", query="kubelet", pattern="a+")
    assert readers
    assert threading.main_thread() not in readers
