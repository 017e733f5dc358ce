"""Anything at all answered to a probe: `python -m tests.fuzz.probe_answers`.

A container says what it likes to who asks it over HTTP, HTTP/2 or gRPC. Its answers are good ones,
spoiled as bytes, or any bytes, and end in the middle. Each probe must have a result, or say why it
could not be run; nothing else may come of it.
"""

import random
import ssl
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import trio
from attrs import define, field, frozen
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived
from h2.exceptions import ProtocolError

from tests.fuzz.command import run_command
from tests.fuzz.values import ValueGenerator
from tests.unit.pod_clients.servers import server_tls
from tests.unit.server.serving import open_files
from trio_kubelet.k8s import Container, Probe
from trio_kubelet.k8s.codec import decode
from trio_kubelet.pod_clients.result import ProbeError, ProbeResult
from trio_kubelet.pod_clients.share import ProbeShare, Target
from trio_kubelet.probes.runner import NodeNetwork

LOOPBACK = "127.0.0.1"
SERVING = b"\0\0\0\0\2\x08\1"
AT_A_TIME = 8
DEADLINE_SECONDS = 60.0
HTTP_ANSWERS = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    b"HTTP/1.1 503 Service Unavailable\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nbad\r\n0\r\n\r\n",
    b"HTTP/1.0 200 OK\r\n\r\nuntil the end",
    b"HTTP/1.1 301 Moved\r\nLocation: /next\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 302 Found\r\nLocation: http://[::1]:99999/\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
)


@frozen(kw_only=True)
class AnswersReport:
    """How a run went; `outcomes` are those of results, and `error`."""

    outcomes: frozenset[str]
    findings: tuple[str, ...]


@define
class _Run:
    values: ValueGenerator
    left: int
    outcomes: set[str] = field(factory=set)
    findings: list[str] = field(factory=list)
    said: bytes = b""

    def spoiled(self, answer: bytes) -> bytes:
        """An answer as it is, spoiled, or any bytes; perhaps only its begin."""
        how = self.values.chance.random()
        if how < 0.2:
            return answer
        if how < 0.8:
            return self.values.spoiled_bytes(answer)
        return answer[: self.values.chance.randrange(20)] + self.values.data()

    async def http(self, stream: trio.abc.Stream) -> None:
        """Answer one request."""
        await stream.receive_some()
        self.said = self.spoiled(self.values.chance.choice(HTTP_ANSWERS))
        await stream.send_all(self.said)

    async def http2(self, stream: trio.abc.Stream) -> None:
        """Answer as a health service does, and any server of HTTP/2."""
        server = H2Connection(H2Configuration(client_side=False))
        server.initiate_connection()
        asked = False
        while not asked and (data := await stream.receive_some()):
            for event in server.receive_data(bytes(data)):
                if isinstance(event, RequestReceived) and event.stream_id is not None:
                    asked = True
                    head = [(":status", "200"), ("content-type", "application/grpc")]
                    server.send_headers(event.stream_id, head)
                    server.send_data(event.stream_id, SERVING)
                    server.send_headers(event.stream_id, [("grpc-status", "0")], end_stream=True)
        self.said = self.spoiled(server.data_to_send())
        await stream.send_all(self.said)

    async def probe(self, network: NodeNetwork, probe: Probe) -> None:
        """Ask again and again."""
        target = Target(
            container=Container(name="c"), container_id="id", pod_ip=LOOPBACK, share=ProbeShare()
        )
        while self.left > 0:
            self.left -= 1
            try:
                with trio.fail_after(DEADLINE_SECONDS):
                    result: ProbeResult = await network.ask(probe, target, 1)
                self.outcomes.add(str(result.outcome))
            except ProbeError:
                self.outcomes.add("error")
            except Exception as error:
                self.findings.append(f"{error!r:.300}, perhaps of {self.said[:300]!r}")


def fuzz_answers(seed: int, probes: int) -> AnswersReport:
    """Run so many probes."""
    return trio.run(_fuzz, seed, probes)


async def _fuzz(seed: int, probes: int) -> AnswersReport:
    run = _Run(ValueGenerator(random.Random(seed)), probes)
    network = NodeNetwork()
    descriptors = open_files()
    tls = server_tls("any", protocols=["h2"])
    async with trio.open_nursery() as servers:
        port, grpc_port = await _serve(servers, run.http), await _serve(servers, run.http2)
        secure_port = await _serve(servers, run.http2, tls)
        get = {"path": "/", "host": LOOPBACK}
        http = decode(Probe, {"httpGet": {**get, "port": port}})
        grpc = decode(Probe, {"grpc": {"port": grpc_port, "service": "any"}})
        https = decode(Probe, {"httpGet": {**get, "port": secure_port, "scheme": "HTTPS"}})
        async with trio.open_nursery() as nursery:
            for number in range(AT_A_TIME):
                nursery.start_soon(run.probe, network, (http, grpc, https)[number % 3])
        servers.cancel_scope.cancel()
    if open_files() > descriptors:
        run.findings.append(f"{open_files() - descriptors} descriptors are left")
    return AnswersReport(outcomes=frozenset(run.outcomes), findings=tuple(run.findings))


async def _serve(
    nursery: trio.Nursery,
    answer: Callable[[trio.abc.Stream], Awaitable[None]],
    tls: ssl.SSLContext | None = None,
) -> int:
    """The port at which somebody answers so, and hangs up."""

    async def serve(plain: trio.abc.Stream) -> None:
        stream = plain if tls is None else trio.SSLStream(plain, tls, server_side=True)
        with trio.move_on_after(DEADLINE_SECONDS), suppress(trio.BrokenResourceError):
            async with stream:
                with suppress(ProtocolError):
                    await answer(stream)

    listeners = await trio.open_tcp_listeners(0, host=LOOPBACK)
    nursery.start_soon(trio.serve_listeners, serve, listeners)
    port: int = listeners[0].socket.getsockname()[1]
    return port


def _command(seed: int, probes: int) -> tuple[str, Sequence[str]]:
    report = fuzz_answers(seed, probes)
    return f"{probes} probes, {sorted(report.outcomes)}", report.findings


if __name__ == "__main__":
    sys.exit(run_command(_command, "tests.fuzz.probe_answers", __doc__, "probes"))
