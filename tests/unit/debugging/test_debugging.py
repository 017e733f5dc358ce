"""Profiles, tasks and verbosity: what operators ask of the agent's own process."""

import gzip
import json
import linecache
import signal
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from types import FrameType
from typing import Any

import pytest
import trio
import trio.testing

from trio_kubelet.config import KubeletConfiguration
from trio_kubelet.config.flags import flag_values
from trio_kubelet.config.model import NodeOptions
from trio_kubelet.debugging import flag_routes, profile_routes, profiles
from trio_kubelet.debugging import samples as samples_module
from trio_kubelet.debugging.samples import (
    Line,
    ProcessorUse,
    Samples,
    Stack,
    packed_profile,
    sampled_processor,
    stack_of,
)
from trio_kubelet.debugging.z_pages import (
    ProgramFacts,
    flagz_route,
    statusz_route,
    wanted_form,
)
from trio_kubelet.server import Request, RequestError, Response, Route, route_requests
from trio_kubelet.server.messages import Headers, RequestBody, Values

STARTED = datetime(2026, 11, 2, 17, 57, 48, tzinfo=UTC)
FACTS = ProgramFacts(
    started_at=STARTED,
    binary_version="1.36.3",
    emulation_version="1.36",
    python_version="3.11.7",
    paths=("/configz", "/healthz"),
)


async def get(
    routes: Sequence[Route], path: str, *, method: str = "GET", body: bytes = b"", accept: str = ""
) -> tuple[Response, bytes]:
    pieces = [body, b""]

    async def receive() -> bytes:
        return pieces.pop(0)

    path, _, query = path.partition("?")
    pairs = [each.partition("=") for each in query.split("&") if each]
    request = Request(
        method=method,
        path=path,
        query=Values(tuple((name, value) for name, _, value in pairs)),
        headers=Headers((("Accept", accept),)) if accept else Headers(),
        body=RequestBody(receive, len(body)),
    )
    response = await route_requests(routes)(request)
    assert response is not None
    if isinstance(response.body, bytes):
        return response, response.body
    return response, b"".join([piece async for piece in response.body])


async def test_tasks_are_a_tree_with_where_each_of_them_waits() -> None:
    async def sleep_in_a_nursery() -> None:
        async with trio.open_nursery() as inner:
            inner.start_soon(trio.sleep_forever, name="the inner one")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(sleep_in_a_nursery, name="the outer one")
        await trio.testing.wait_all_tasks_blocked()
        _, text = await get(profile_routes(), "/debug/pprof/goroutine?debug=2")
        nursery.cancel_scope.cancel()
    lines = text.decode().splitlines()
    outer, inner = (
        next(line for line in lines if line.strip() == name)
        for name in ("the outer one", "the inner one")
    )
    assert lines.index(outer) < lines.index(inner)
    assert len(inner) - len(inner.lstrip()) == len(outer) - len(outer.lstrip()) + 2
    assert any("sleep_in_a_nursery" in line and " at " in line for line in lines)


async def test_the_profile_shows_what_the_event_loop_does() -> None:
    async def compute() -> None:
        while True:
            sum(range(100_000))
            await trio.lowlevel.checkpoint()

    microseconds = {True: 0, False: 0}
    packed = b""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(compute)
        with trio.fail_after(60):
            # On a busy machine a second may pass in which the event loop does nothing.
            while sum(microseconds.values()) < 300_000:
                _, text = await get(profile_routes(), "/debug/pprof/profile?seconds=1&debug=1")
                for line in text.decode().splitlines():
                    stack, _, used = line.rpartition(" ")
                    microseconds["compute:" in stack] += int(used)
            while b"compute" not in packed:
                response, sent = await get(profile_routes(), "/debug/pprof/profile?seconds=1")
                packed = gzip.decompress(sent)
        nursery.cancel_scope.cancel()
    assert response.content_type == "application/octet-stream"
    assert microseconds[True] > microseconds[False]


async def test_samples_count_what_threads_use_and_not_how_long_they_wait() -> None:
    go_on, waiting = threading.Event(), threading.Event()

    def wait() -> None:
        waiting.set()
        go_on.wait(60)

    def compute(samples: Samples) -> None:
        begun = time.thread_time()
        while sum(use.samples for use in list(samples.values())) < 5:
            assert time.thread_time() < begun + 30

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, wait)
        await trio.to_thread.run_sync(waiting.wait)
        begun_ns = time.process_time_ns()
        with sampled_processor() as samples:
            await trio.to_thread.run_sync(compute, samples)
        used_ns = time.process_time_ns() - begun_ns
        go_on.set()
    assert sum(use.nanoseconds for use in samples.values()) <= used_ns
    computing, idle = (use_of(function, samples) for function in (compute, wait))
    assert computing.nanoseconds > used_ns / 2
    # It may have been seen on its way to where it waits.
    assert idle.samples <= 1


async def test_a_signal_that_comes_amid_a_sample_counts_nothing_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    signals = iter(range(3))

    def stack_of_amid_signals(frame: FrameType | None) -> Stack:
        if next(signals, None) is not None:
            signal.raise_signal(signal.SIGPROF)
        return stack_of(frame)

    monkeypatch.setattr(samples_module, "stack_of", stack_of_amid_signals)
    begun_ns = time.process_time_ns()
    with sampled_processor() as samples:
        while time.process_time_ns() < begun_ns + 8_000_000:
            pass
        signal.raise_signal(signal.SIGPROF)
    used_ns = time.process_time_ns() - begun_ns
    assert samples
    assert sum(use.nanoseconds for use in samples.values()) <= used_ns


def use_of(function: Callable[..., object], samples: Samples) -> ProcessorUse:
    found = [
        use
        for stack, use in samples.items()
        if any(line.function == function.__qualname__ for line in stack)
    ]
    return ProcessorUse(
        samples=sum(each.samples for each in found),
        nanoseconds=sum(each.nanoseconds for each in found),
    )


async def test_a_signal_that_comes_after_the_last_sample_is_no_sample_and_ends_nothing() -> None:
    with sampled_processor() as samples:
        signal.raise_signal(signal.SIGPROF)
    assert signal.getitimer(signal.ITIMER_PROF) == (0, 0)
    seen = dict(samples)
    assert any(stack[0].function.startswith("test_a_signal") for stack in seen)
    signal.raise_signal(signal.SIGPROF)
    assert samples == seen


async def test_one_profile_is_taken_at_a_time_and_a_client_that_goes_ends_its_own() -> None:
    routes = profile_routes()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(get, routes, "/debug/pprof/profile?seconds=300")
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(RequestError, match="cpu profiling already in use"):
            await get(routes, "/debug/pprof/profile?seconds=1")
        nursery.cancel_scope.cancel()
    await get(routes, "/debug/pprof/profile?seconds=1")


async def test_of_two_profiles_that_are_asked_for_at_once_one_is_refused() -> None:
    handler = route_requests(profile_routes())
    request = Request(method="GET", path="/debug/pprof/profile")
    for _ in range(2):
        begun = await handler(request)
        with pytest.raises(RequestError, match="cpu profiling already in use") as refused:
            await handler(request)
        assert refused.value.status == 500
        assert begun is not None
        assert not isinstance(begun.body, bytes)
        await begun.body.aclose()


async def test_the_heap_is_counted_for_one_client_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counting, go_on = threading.Event(), threading.Event()

    def count() -> tuple[()]:
        counting.set()
        go_on.wait(60)
        return ()

    monkeypatch.setattr(profiles, "_heap_lines", count)
    routes = profile_routes()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(get, routes, "/debug/pprof/heap")
        await trio.to_thread.run_sync(counting.wait)
        with pytest.raises(RequestError, match="another one"):
            await get(routes, "/debug/pprof/heap")
        go_on.set()
    await get(routes, "/debug/pprof/heap")


@pytest.mark.parametrize(("query", "writer"), [("", "packed_profile"), ("&debug=1", "_folded")])
async def test_a_profile_is_written_beside_the_event_loop(
    query: str, writer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    def write(*_: object) -> bytes:
        threads.append(threading.get_ident())
        return b"written"

    monkeypatch.setattr(profiles, writer, write)
    await get(profile_routes(), f"/debug/pprof/profile?seconds=1{query}")
    assert threads
    assert threading.get_ident() not in threads


async def test_stacks_of_threads_are_shown_without_a_look_at_their_sources(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(linecache, "checkcache", lambda *_: pytest.fail("files were looked at"))
    _, text = await get(profile_routes(), "/debug/pprof/threadcreate")
    assert b"test_stacks_of_threads_are_shown" in text


async def test_the_heap_is_counted_by_type() -> None:
    class Unusual:
        pass

    kept = [Unusual() for _ in range(50_000)]
    _, text = await get(profile_routes(), "/debug/pprof/heap")
    line = next(line for line in text.decode().splitlines() if line.endswith(".Unusual"))
    assert int(line.split()[2]) == len(kept)


@pytest.mark.parametrize(
    ("name", "begin"), [("cmdline", b""), ("threadcreate", b"thread "), ("goroutine", b"")]
)
async def test_other_profiles_are_there(name: str, begin: bytes) -> None:
    response, text = await get(profile_routes(), f"/debug/pprof/{name}")
    assert response.status == 200
    assert text.startswith(begin)
    assert text


@pytest.mark.parametrize(
    ("path", "words"), [("", "404: Page Not Found"), ("nope", "Unknown profile")]
)
async def test_there_are_no_others(path: str, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        await get(profile_routes(), f"/debug/pprof/{path}")


def test_a_packed_profile_has_the_fields_that_pprof_reads() -> None:
    inner, outer = Line("inner", "a.py", 300), Line("outer", "b.py", 2)
    content = gzip.decompress(packed_profile({(inner, outer): ProcessorUse(3, 30_000_000)}, 1))
    fields = [(number, value) for number, value in decoded(content)]
    strings = [value.decode() for number, value in fields if number == 6]
    assert strings[0] == ""
    assert {"samples", "count", "cpu", "nanoseconds", "inner", "a.py"} <= {*strings}
    (sample,) = (dict(decoded(value)) for number, value in fields if number == 2)
    assert sample[1] == bytes([1, 2])
    assert sample[2] == bytes([3]) + b"\x80\x87\xa7\x0e"
    locations = [dict(decoded(value)) for number, value in fields if number == 4]
    assert [dict(decoded(each[4]))[2] for each in locations] == [300, 2]
    functions = [dict(decoded(value)) for number, value in fields if number == 5]
    assert [(strings[each[2]], strings[each[4]]) for each in functions] == [
        ("inner", "a.py"),
        ("outer", "b.py"),
    ]


def decoded(content: bytes) -> list[tuple[int, Any]]:
    """The fields of a protobuf message: numbers, or bytes."""

    def varint() -> int:
        nonlocal content
        value = shift = 0
        while True:
            byte, content = content[0], content[1:]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    found: list[tuple[int, Any]] = []
    while content:
        key = varint()
        if key & 7 == 0:
            found.append((key >> 3, varint()))
        else:
            size = varint()
            found.append((key >> 3, content[:size]))
            content = content[size:]
    return found


@pytest.mark.parametrize(
    ("method", "body", "status", "words", "set_to"),
    [
        # As seen on a Go kubelet v1.36.3.
        ("PUT", b"4", 200, b"successfully set klog.logging.verbosity to 4\n", [4]),
        ("GET", b"", 406, b"unsupported http method\n", []),
        ("POST", b"4", 406, b"unsupported http method\n", []),
        ("PUT", b"", 400, b'strconv.ParseUint: parsing "": invalid syntax\n', []),
        ("PUT", b"-1", 400, b'strconv.ParseUint: parsing "-1": invalid syntax\n', []),
        ("PUT", b"2\n", 400, b'strconv.ParseUint: parsing "2\\n": invalid syntax\n', []),
        ("PUT", b"\xff", 400, b"invalid syntax", []),
        ("PUT", b"9" * 5000, 400, b"value out of range\n", []),
        ("PUT", b"2147483648", 400, b"value out of range\n", []),
    ],
)
async def test_verbosity_is_set_while_the_agent_runs(
    method: str, body: bytes, status: int, words: bytes, set_to: list[int]
) -> None:
    asked: list[int] = []
    response, text = await get(
        flag_routes(asked.append), "/debug/flags/v", method=method, body=body
    )
    assert (response.status, asked) == (status, set_to)
    assert words in text


async def test_statusz_tells_people_what_runs() -> None:
    route = statusz_route(FACTS, lambda: STARTED + timedelta(hours=30, seconds=61))
    _, text = await get([route], "/statusz")
    assert text.decode().splitlines()[4:] == [
        "Started: Mon Nov  2 17:57:48 UTC 2026",
        "Up: 30 hr 01 min 01 sec",
        "Python version: 3.11.7",
        "Binary version: 1.36.3",
        "Emulation version: 1.36",
        "Paths: /configz /healthz",
    ]


async def test_statusz_and_flagz_are_objects_for_who_names_their_kind() -> None:
    accept = "application/json;as=Statusz;v=v1beta1;g=config.k8s.io"
    route = statusz_route(FACTS, lambda: STARTED + timedelta(seconds=5))
    response, text = await get([route], "/statusz", accept=accept)
    assert response.content_type == "application/json;g=config.k8s.io;v=v1beta1;as=Statusz"
    assert json.loads(text) == {
        "kind": "Statusz",
        "apiVersion": "config.k8s.io/v1beta1",
        "metadata": {"name": "kubelet"},
        "startTime": "2026-11-02T17:57:48Z",
        "uptimeSeconds": 5,
        "pythonVersion": "3.11.7",
        "binaryVersion": "1.36.3",
        "emulationVersion": "1.36",
        "paths": ["/configz", "/healthz"],
    }
    flags = flagz_route(lambda: {"v": "2", "address": "0.0.0.0"})
    accept = "application/yaml;as=Flagz;v=v1alpha1;g=config.k8s.io"
    assert (
        b"flags:\n  address: 0.0.0.0\n  v: '2'\n"
        in (await get([flags], "/flagz", accept=accept))[1]
    )
    assert (await get([flags], "/flagz"))[1].endswith(b"\naddress 0.0.0.0\nv 2\n")
    assert (await get([flags], "/flagz", accept="text/html"))[0].status == 406


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", ("text/plain", "")),
        ("*/*", ("text/plain", "")),
        ("text/html, text/plain;q=0.5", ("text/plain", "")),
        ("application/json", None),
        ("application/json;as=Flagz;v=v1beta1;g=config.k8s.io", None),
        ("application/json;as=Statusz;v=v9;g=config.k8s.io", None),
        ("application/json;v=v1beta1;g=config.k8s.io;as=Statusz", ("application/json", "v1beta1")),
        (";;==,;", None),
    ],
)
def test_the_form_is_what_is_accepted(accept: str, form: tuple[str, str] | None) -> None:
    assert wanted_form(accept, "Statusz") == form


def test_flags_are_told_as_they_are_in_force_and_without_secrets() -> None:
    configuration = KubeletConfiguration(
        max_pods=7, static_pod_url_header={"Authorization": ("s3cret",)}
    )
    options = NodeOptions(cadvisor={"storage-driver-password": "s3cret", "containerd": "/x"})
    values = flag_values(configuration, options)
    assert (values["max-pods"], values["containerd"], values["node-ip"]) == ("7", "/x", "")
    assert values["storage-driver-password"] == values["manifest-url-header"] == "<masked>"
    assert "s3cret" not in str(values)
