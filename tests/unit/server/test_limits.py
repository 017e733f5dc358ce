"""Clients that are slow or too many, and a server that ends while it is asked."""

from collections.abc import AsyncGenerator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest
import structlog
import trio
from trio.testing import MockClock

from tests.unit.server.serving import (
    at_most_open_files,
    connect,
    echo,
    everything,
    head,
    last,
    open_files,
    serving,
    until,
)
from trio_kubelet.ports.secure_port import LIMITS
from trio_kubelet.server import Limits, Request, Response, listen_tcp, listen_unix, serve_http
from trio_kubelet.server.connections import (
    ClientGoneError,
    ConnectionTable,
    NoPlaceError,
    Place,
    TooManyLastingError,
)

# The time that a limit gives; what a test does within it may take as long on a busy machine.
SHORT = 0.5


@pytest.mark.parametrize("text", [b"", b"GET /he", head()])
async def test_a_client_that_takes_too_long_over_a_head_is_hung_up_on(text: bytes) -> None:
    async with serving(limits=Limits(head_seconds=SHORT)) as port:
        assert await everything(await connect(port, text)) == b""


MORE_THAN_SOCKETS_HOLD = b"x" * 20_000_000


async def test_a_head_that_comes_byte_by_byte_has_no_more_time() -> None:
    async with serving(limits=Limits(head_seconds=0.2)) as port:
        stream = await connect(port)
        with trio.fail_after(60), suppress(trio.BrokenResourceError):
            while True:
                await stream.send_all(b"x")
                await trio.sleep(0.02)
        await stream.aclose()


async def test_a_client_that_is_idle_between_requests_is_hung_up_on() -> None:
    async with serving(limits=Limits(idle_seconds=SHORT)) as port:
        said = await everything(await connect(port, head() + b"\r\n"))
    assert said.endswith(b"GET /healthz ()")


async def test_a_client_may_be_idle_for_longer_than_a_head_may_take(
    mock_clock: MockClock,
) -> None:
    async with serving(limits=Limits(head_seconds=SHORT)) as port:
        stream = await connect(port, head() + b"\r\n")
        await until(stream, b"GET /healthz ()")
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(2 * SHORT)
        await trio.testing.wait_all_tasks_blocked()
        await stream.send_all(last())
        assert (await everything(stream)).endswith(b"GET /healthz ()")


async def test_a_body_that_does_not_get_on_is_not_waited_for() -> None:
    async def read(request: Request) -> Response:
        return Response(body=await request.body.read())

    with structlog.testing.capture_logs() as logs:
        async with serving(read, Limits(progress_seconds=SHORT)) as port:
            text = head("/", "Content-Length: 100", method="POST") + b"\r\nhalf"
            assert await everything(await connect(port, text)) == b""
    assert not logs


async def test_a_client_that_does_not_read_its_response_is_hung_up_on() -> None:
    sent = 50_000_000
    asked = trio.Event()

    async def much(_request: Request) -> Response:
        asked.set()
        return Response(body=b"x" * sent)

    async with serving(much, Limits(take_seconds=SHORT)) as port:
        before = open_files()
        stream = await connect(port, head() + b"\r\n")
        await asked.wait()
        await at_most_open_files(before + 1)
        with pytest.raises((trio.BrokenResourceError, AssertionError)):
            assert len(await everything(stream)) > sent


async def test_clients_that_do_not_read_have_so_much_together() -> None:
    """Whoever of them has waited longest is hung up on, and others are answered."""

    async def much(_request: Request) -> Response:
        return Response(body=bytes(bytearray(MORE_THAN_SOCKETS_HOLD)))  # For this one alone.

    limits = Limits(unsent_bytes=3 * len(MORE_THAN_SOCKETS_HOLD))
    async with serving(much, limits) as port:
        before = open_files()
        silent = [await connect(port, last()) for _ in range(10)]
        for stream in silent:
            await until(stream, b"\r\n\r\n")
        await at_most_open_files(before + len(silent) + 2)
        assert len(await everything(await connect(port, last()))) > len(MORE_THAN_SOCKETS_HOLD)
        for stream in silent:
            await stream.aclose()


def test_the_answers_that_go_are_those_of_who_has_most_of_several() -> None:
    table = ConnectionTable(Limits(unsent_bytes=10))
    with ExitStack() as stack:
        one, many = (
            [stack.enter_context(table.place(peer)) for _ in range(3)] for peer in ("one", "many")
        )
        stack.enter_context(one[0].sending(100))
        assert not one[0].gone
        for place in many:
            stack.enter_context(place.sending(10))
        assert [place.gone for place in (one[0], *many)] == [False, True, True, False]
        one[1].owner = "another namespace"
        stack.enter_context(one[1].sending(100))
        assert not one[0].gone
        assert not one[1].gone


def test_an_answer_that_several_clients_have_counts_once() -> None:
    shared, others = b"x" * 10, [bytes((number,)) * 10 for number in range(3)]
    table = ConnectionTable(Limits(unsent_bytes=20))
    places = [Place(table, "peer") for _ in range(6)]
    for _ in range(2):  # What was counted is counted no more once nobody has it.
        with ExitStack() as stack:
            for place in places[:3]:
                stack.enter_context(place.sending(3, shared))
            assert not any(place.gone for place in places)
    with ExitStack() as stack:
        for place, body in zip(places[3:], others, strict=True):
            stack.enter_context(place.sending(0, body))
        assert [place.gone for place in places[3:]] == [True, False, False]


async def test_who_reads_the_node_s_answers_page_by_page_gets_them_whole(
    mock_clock: MockClock,
) -> None:
    async def much(_request: Request) -> Response:
        return Response(body=MORE_THAN_SOCKETS_HOLD)

    async with serving(much, LIMITS) as port:
        stream = await connect(port, last())
        said = await until(stream, b"\r\n\r\n")
        await trio.testing.wait_all_tasks_blocked(0.02)
        mock_clock.jump(50)
        assert len(said + await everything(stream)) > len(MORE_THAN_SOCKETS_HOLD)


async def test_idle_clients_keep_nobody_from_asking() -> None:
    async with serving(limits=Limits(connections=4)) as port:
        idle = [await connect(port, b"GET /") for _ in range(8)]
        assert (await everything(await connect(port, last()))).endswith(b"GET /healthz ()")
        # Those that waited longest had to go, the youngest are still there.
        assert await everything(idle[0]) == b""
        await idle[-1].send_all(b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await everything(idle[-1])).endswith(b"GET / ()")
        for stream in idle:
            await stream.aclose()


async def test_slow_readers_keep_nobody_from_asking() -> None:
    async def much(request: Request) -> Response:
        return Response(body=MORE_THAN_SOCKETS_HOLD if request.path == "/much" else b"ok")

    async with serving(much, Limits(connections=4)) as port:
        slow = [await connect(port, head("/much") + b"\r\n") for _ in range(4)]
        for stream in slow:
            await until(stream, b"\r\n\r\n")
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert (await everything(await connect(port, last()))).endswith(b"ok")
        for stream in slow:
            await stream.aclose()


async def test_five_hundred_slow_clients_keep_nobody_from_asking() -> None:
    with structlog.testing.capture_logs() as logs:
        async with serving() as port:
            before = open_files()
            slow = [await connect(port, b"GET / HTTP/1.1\r\nX-Slow: ") for _ in range(500)]
            for _ in range(10):
                assert (await everything(await connect(port, last()))).endswith(b"GET /healthz ()")
            for stream in slow:
                await stream.aclose()
            await at_most_open_files(before)
    assert not logs


async def test_when_all_connections_are_being_answered_a_new_one_is_refused() -> None:
    at_work, go_on = trio.Event(), trio.Event()
    asked = 0

    async def slow(_request: Request) -> Response:
        nonlocal asked
        asked += 1
        if asked == 2:
            at_work.set()
        await go_on.wait()
        return Response(body=b"done")

    async with serving(slow, Limits(connections=2)) as port:
        first, second = await connect(port, last()), await connect(port, last())
        await at_work.wait()
        try:
            assert await everything(await connect(port)) == b""
        finally:
            go_on.set()
        assert (await everything(first)).endswith(b"done")
        assert (await everything(second)).endswith(b"done")


async def test_the_longest_wait_of_all_makes_room_and_within_a_peer_its_own() -> None:
    table = ConnectionTable(Limits(connections=3, connections_of_a_peer=2))
    with (
        table.place("a") as oldest,
        table.place("b") as first,
        table.place("b") as second,
        oldest.waiting(60) as oldest_wait,
        first.waiting(60) as first_wait,
        second.waiting(60) as second_wait,
    ):
        waits = (oldest_wait, first_wait, second_wait)

        def ended() -> list[bool]:
            return [wait.cancel_called for wait in waits]

        with table.place("b"):
            assert ended() == [False, True, False]
        with table.place("c"):
            assert ended() == [False, True, False]
        with table.place("c"), table.place("d"):
            assert ended() == [True, True, False]


async def test_a_request_is_waited_for_from_its_begin_however_it_comes(
    autojump_clock: MockClock,
) -> None:
    table = ConnectionTable(Limits(connections=2))
    with table.place("byte by byte") as slow, table.place("at once") as honest:
        with slow.waiting(60, for_request=True):
            await trio.sleep(1)
        with honest.waiting(60, for_request=True) as honest_wait:
            await trio.sleep(1)
            with slow.waiting(60, for_request=True) as slow_wait, table.place("new"):
                assert (slow_wait.cancel_called, honest_wait.cancel_called) == (True, False)


async def test_a_client_about_whom_nothing_is_known_makes_room_before_others() -> None:
    table = ConnectionTable(Limits(connections=2))
    with table.place("a") as known, table.place("b") as unknown:
        known.let_in(known=True)
        with (
            known.waiting(60) as known_wait,
            unknown.waiting(60) as unknown_wait,
            table.place("c"),
        ):
            assert (known_wait.cancel_called, unknown_wait.cancel_called) == (False, True)


async def test_a_request_under_review_makes_room_and_one_that_was_let_in_does_not() -> None:
    table = ConnectionTable(Limits(connections=2))
    with table.place("a") as let_in, table.place("b") as reviewed:
        with let_in.under_review():
            pass
        let_in.let_in(known=True)
        with pytest.raises(ClientGoneError), reviewed.under_review(), table.place("c"):
            await trio.lowlevel.checkpoint()
        with table.place("c"), pytest.raises(NoPlaceError):
            table.place("d").__enter__()


async def test_the_peer_with_the_most_unknown_clients_makes_room() -> None:
    table = ConnectionTable(Limits(connections=4))
    with ExitStack() as stack:
        few = stack.enter_context(table.place("few"))
        waits = [stack.enter_context(few.waiting(60))]
        for _ in range(3):
            place = stack.enter_context(table.place("many"))
            waits.append(stack.enter_context(place.waiting(60)))
        for _ in range(2):
            stack.enter_context(table.place("new"))
        assert [wait.cancel_called for wait in waits] == [False, True, True, False]


async def test_requests_that_last_are_shared_by_their_owners() -> None:
    table = ConnectionTable(Limits(lasting_requests=4))
    with ExitStack() as stack:

        def last(owner: str) -> trio.CancelScope:
            place, work = stack.enter_context(table.place("proxy")), trio.CancelScope()
            stack.enter_context(place.working(work))
            place.owner = owner
            place.last()
            return work

        greedy = [last("greedy") for _ in range(4)]
        with pytest.raises(TooManyLastingError, match="greedy has 4 of 4"):
            last("greedy")
        modest = [last("modest"), last("modest")]
        assert [work.cancel_called for work in greedy] == [False, False, True, True]
        with pytest.raises(TooManyLastingError, match="modest has 2 of 4"):
            last("modest")
        third = last("third")
        assert [work.cancel_called for work in (*greedy[:2], *modest, third)].count(True) == 1


async def test_a_request_that_has_ended_lasts_no_more() -> None:
    table = ConnectionTable(Limits(lasting_requests=1))
    with table.place("proxy") as place:
        for _ in range(3):
            with place.working(trio.CancelScope()):
                place.last()


async def test_a_stream_that_has_to_make_room_ends_and_those_of_others_go_on() -> None:
    async def endless(request: Request) -> Response:
        request.place.owner = request.path[1:]
        request.will_last()

        async def body() -> AsyncGenerator[bytes, None]:
            yield b"begun"
            await trio.sleep_forever()

        return Response(body=body())

    with structlog.testing.capture_logs() as logs:
        async with serving(endless, Limits(lasting_requests=2)) as port:
            streams = []
            for path in ("/a", "/a", "/b"):
                streams.append(await connect(port, head(path) + b"\r\n"))
                await until(streams[-1], b"begun")
            assert await everything(streams[1]) == b""
            refused = await everything(await connect(port, last("/b")))
            assert b"429" in refused
            assert b"b has 1 of 2; try again later" in refused
            for stream in (streams[0], streams[2]):
                with trio.move_on_after(0.05) as scope:
                    await stream.receive_some()
                assert scope.cancelled_caught, "nothing has come, and no end"
                await stream.aclose()
    assert [entry["event"] for entry in logs] == ["request ended to make room"]


async def test_a_connection_that_went_to_make_room_is_not_counted_twice() -> None:
    table = ConnectionTable(Limits(connections=1))
    with table.place("a") as first, first.waiting(60) as wait, table.place("b"):
        assert wait.cancel_called
        with pytest.raises(NoPlaceError):
            table.place("c").__enter__()
    with table.place("c"), pytest.raises(NoPlaceError):
        table.place("d").__enter__()


async def ended(
    handler_begun: trio.Event, go_on: trio.Event, close_seconds: float, text: bytes
) -> bytes:
    """What a client gets whose request is in flight when the server ends."""

    async def answer(request: Request) -> Response:
        handler_begun.set()
        await go_on.wait()
        return Response(body=b"done")

    (listener,) = await listen_tcp("127.0.0.1", 0)
    port = listener.socket.getsockname()[1]
    said = b""
    async with trio.open_nursery() as nursery:

        async def serve(*, task_status: trio.TaskStatus[None]) -> None:
            limits = Limits(close_seconds=close_seconds)
            await serve_http([listener], answer, limits=limits, task_status=task_status)

        await nursery.start(serve)
        idle = await connect(port)
        stream = await connect(port, text)
        await handler_begun.wait()
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            assert await everything(idle) == b""
            with pytest.raises(OSError, match="connect"):
                await connect(port)
            if close_seconds > 1:
                go_on.set()
            said = await everything(stream)
    return said


async def test_what_is_in_flight_when_the_server_ends_is_answered() -> None:
    with trio.fail_after(60):
        said = await ended(trio.Event(), trio.Event(), 30, head() + b"\r\n")
    assert b"connection: close" in said.lower()
    assert said.endswith(b"done")


async def test_what_is_in_flight_for_too_long_is_cut() -> None:
    with trio.fail_after(60), structlog.testing.capture_logs() as logs:
        assert await ended(trio.Event(), trio.Event(), SHORT, head() + b"\r\n") == b""
    assert not logs


async def test_a_stream_without_an_end_is_cut_at_the_servers_and_closed() -> None:
    closed = trio.Event()

    async def endless() -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield b"x"
                await trio.sleep(0.01)
        finally:
            closed.set()

    async def answer(_request: Request) -> Response:
        return Response(body=endless())

    async with serving(answer, Limits(close_seconds=SHORT)) as port:
        stream = await connect(port, head() + b"\r\n")
        await until(stream, b"x\r\n")
    assert closed.is_set()
    with trio.fail_after(60):
        assert not (await everything(stream)).endswith(b"0\r\n\r\n")


async def test_limits_of_a_peer_are_those_of_a_user_on_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    async with trio.open_nursery() as nursery:

        async def serve(*, task_status: trio.TaskStatus[None]) -> None:
            limits = Limits(connections_of_a_peer=1)
            await serve_http(listen_unix(path), echo, limits=limits, task_status=task_status)

        await nursery.start(serve)
        idle = await trio.open_unix_socket(path)
        transport = httpx.AsyncHTTPTransport(uds=str(path))
        async with httpx.AsyncClient(transport=transport) as http_client:
            assert (await http_client.get("http://agent/")).text == "GET / ()"
        with trio.fail_after(60):
            assert await idle.receive_some() == b""
        await idle.aclose()
        nursery.cancel_scope.cancel()
