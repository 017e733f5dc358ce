"""The servers that probes of other tests ask: each answers as asked, and tells who has asked."""

import pytest

from lab.ports import LOOPBACK
from lab.probe_targets import ProbeTargetsProcess
from trio_kubelet.k8s import Container, GRPCAction, HTTPGetAction, IntOrString, TCPSocketAction
from trio_kubelet.pod_clients.dial import Dialer, probe_tcp
from trio_kubelet.pod_clients.grpc import probe_grpc
from trio_kubelet.pod_clients.http import HttpProber
from trio_kubelet.pod_clients.result import ProbeError, ProbeOutcome
from trio_kubelet.pod_clients.share import ProbeShare

PATIENCE_SECONDS = 30
SOON_SECONDS = 0.2
CONTAINER = Container(name="c")


async def test_probes_of_all_kinds_are_answered_as_they_ask_for() -> None:
    dialer = Dialer()
    with ProbeTargetsProcess(1) as targets:

        async def http(path: str, seconds: float = PATIENCE_SECONDS) -> ProbeOutcome:
            action = HTTPGetAction(path=path, port=IntOrString(targets.http_port))
            prober = HttpProber(dialer)
            return (await prober.probe(action, CONTAINER, LOOPBACK, seconds, ProbeShare())).outcome

        async def grpc(service: str, seconds: float = PATIENCE_SECONDS) -> ProbeOutcome:
            action = GRPCAction(port=targets.grpc_port, service=service)
            return (await probe_grpc(dialer, action, LOOPBACK, seconds, ProbeShare())).outcome

        assert await http("/200?well") is ProbeOutcome.SUCCESS
        assert await http("/500") is ProbeOutcome.FAILURE
        assert await http("/away") is ProbeOutcome.WARNING
        assert await http("/close") is ProbeOutcome.FAILURE
        assert await http("/hang", SOON_SECONDS) is ProbeOutcome.FAILURE
        with pytest.raises(ProbeError):
            await http("/cut")
        assert await grpc("well") is ProbeOutcome.SUCCESS
        assert await grpc("ill") is ProbeOutcome.FAILURE
        assert await grpc("close") is ProbeOutcome.FAILURE
        assert await grpc("hang", SOON_SECONDS) is ProbeOutcome.FAILURE
        (port,) = targets.tcp_ports
        plain = TCPSocketAction(port=IntOrString(port))
        answer = await probe_tcp(dialer, plain, CONTAINER, LOOPBACK, PATIENCE_SECONDS, ProbeShare())
        assert answer.outcome is ProbeOutcome.SUCCESS
        asked = targets.asked()
    assert {"http /200?well", "http /cut", "grpc well", "grpc hang"} <= asked.keys()
