"""The tcpSocket probe: whether a connection can be made."""

import trio

from trio_kubelet.k8s import Container, TCPSocketAction
from trio_kubelet.probes.answer import Answer, Outcome, failure
from trio_kubelet.probes.dial import Dialer, DialError, host_port, port_number


async def probe_tcp(
    dialer: Dialer,
    action: TCPSocketAction,
    container: Container,
    pod_ip: str,
    timeout_seconds: float,
) -> Answer:
    """Connect, and close at once. Raises ProbeError where the port has no number."""
    host, port = action.host or pod_ip, port_number(container, action.port)
    with trio.move_on_after(timeout_seconds):
        try:
            connection = await dialer.dial(host, port)
        except DialError as error:
            return failure(str(error))
        connection.close()
        return Answer(outcome=Outcome.SUCCESS, by_container=True)
    return failure(f"dial tcp {host_port(host, port)}: i/o timeout")
