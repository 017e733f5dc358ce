"""What this node lacks for a connection is nothing that a container has done."""

import errno
import os
import re
import socket
from collections.abc import Awaitable, Callable, Sequence

import pytest

from tests.unit.pod_clients.servers import LOOPBACK, no_descriptors
from trio_kubelet.k8s import Container, GRPCAction, HTTPGetAction, IntOrString, TCPSocketAction
from trio_kubelet.pod_clients.dial import Dialer, probe_tcp
from trio_kubelet.pod_clients.grpc import probe_grpc
from trio_kubelet.pod_clients.http import HttpProber
from trio_kubelet.pod_clients.result import ProbeError, ProbeOutcome, ProbeResult
from trio_kubelet.pod_clients.share import ProbeShare

PORT = 1

Ask = Callable[[str], Awaitable[ProbeResult]]


async def over_http(host: str) -> ProbeResult:
    action = HTTPGetAction(port=IntOrString(PORT), path="/x")
    return await HttpProber(Dialer()).probe(action, Container(), host, 10, ProbeShare())


async def over_tcp(host: str) -> ProbeResult:
    return await probe_tcp(
        Dialer(), TCPSocketAction(port=IntOrString(PORT)), Container(), host, 10, ProbeShare()
    )


async def over_grpc(host: str) -> ProbeResult:
    return await probe_grpc(Dialer(), GRPCAction(port=PORT), host, 10, ProbeShare())


BEFORE: Sequence[tuple[Ask, str]] = (
    (over_http, 'Get "http://127.0.0.1:1/x": '),
    (over_tcp, ""),
    (over_grpc, 'error: failed to connect service at "127.0.0.1:1": '),
)


@pytest.mark.parametrize(("ask", "before"), BEFORE)
async def test_without_descriptors_a_probe_cannot_be_run(ask: Ask, before: str) -> None:
    words = f"{before}dial tcp 127.0.0.1:1: socket: too many open files"
    with no_descriptors(), pytest.raises(ProbeError, match=re.escape(words)) as failed:
        await ask(LOOPBACK)
    assert failed.value.outcome is ProbeOutcome.UNKNOWN


@pytest.mark.parametrize("code", [errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM])
@pytest.mark.parametrize(("ask", "before"), BEFORE)
async def test_without_a_local_port_or_memory_a_probe_cannot_be_run(
    ask: Ask, before: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket.socket, "connect_ex", lambda _self, _address: code)
    words = f"{before}dial tcp 127.0.0.1:1: connect: {os.strerror(code).lower()}"
    with pytest.raises(ProbeError, match=re.escape(words)):
        await ask(LOOPBACK)


@pytest.mark.parametrize(
    "code", [errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EACCES]
)
async def test_what_the_way_to_a_container_answers_is_a_failure(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket.socket, "connect_ex", lambda _self, _address: code)
    assert (await over_tcp(LOOPBACK)).outcome is ProbeOutcome.FAILURE


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EMFILE, "Too many open files"),
        socket.gaierror(socket.EAI_MEMORY, "Memory allocation failure"),
    ],
)
async def test_a_name_that_this_node_cannot_look_up_for_itself_proves_nothing(
    error: OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_lookup(*_args: object, **_fields: object) -> object:
        raise error

    monkeypatch.setattr(socket, "getaddrinfo", no_lookup)
    with pytest.raises(ProbeError, match=f"lookup a.name: {str(error.strerror).lower()}"):
        await over_tcp("a.name")
