"""The tcpSocket probe: whether a connection can be made."""

import trio

from trio_kubelet.k8s import Container, TCPSocketAction
from trio_kubelet.probes.dial import Dialer, DialError, host_port, port_number
from trio_kubelet.probes.result import ProbeOutcome, ProbeResult, failure


async def probe_tcp(
    dialer: Dialer,
    action: TCPSocketAction,
    container: Container,
    pod_ip: str,
    timeout_seconds: float,
) -> ProbeResult:
    """Connect, and close at once. Raises ProbeError where the port has no number."""
    host, port = action.host or pod_ip, port_number(container, action.port)
    with trio.move_on_after(timeout_seconds):
        try:
            connection = await dialer.dial(host, port)
        except DialError as error:
            return failure(str(error))
        connection.close()
        return ProbeResult(outcome=ProbeOutcome.SUCCESS, by_container=True)
    return failure(f"dial tcp {host_port(host, port)}: i/o timeout")
