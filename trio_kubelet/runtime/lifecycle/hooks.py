"""Lifecycle hooks: what a container runs after its start and before its stop.

A hook may run long: it is never shielded, and a stop bounds it by the grace period. (API:
Container.lifecycle; exec, httpGet, sleep, and tcpSocket, which has never been supported.)
"""

import re

import httpx
import trio
from attrs import frozen

from trio_kubelet.k8s import Container, LifecycleHandler, Pod
from trio_kubelet.rpc import RpcError
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.config.names import pod_full_name

HTTP_TIMEOUT_SECONDS = 30.0
_SHORT_NUMBER = re.compile(r"\d{1,9}", re.ASCII)
MESSAGE_LIMIT = 1024
BODY_LIMIT_BYTES = 10 * 1024


@frozen
class HookError(Exception):
    """A hook failed. `message` is what the container's waiting state shows."""

    message: str

    def __str__(self) -> str:
        return self.message


async def run_hook(
    client: RuntimeClient,
    pod: Pod,
    container: Container,
    container_id: str,
    handler: LifecycleHandler,
    pod_ip: str,
) -> None:
    """Run a hook to its end. Raises HookError if it fails."""
    if handler.exec is not None:
        await _run_command(client, pod, container, container_id, handler.exec.command)
    elif handler.http_get is not None:
        await _get(pod, container, handler, pod_ip)
    elif handler.sleep is not None:
        await trio.sleep(handler.sleep.seconds)
    else:
        raise HookError("invalid handler: none of exec, httpGet and sleep is set")


async def _run_command(
    client: RuntimeClient,
    pod: Pod,
    container: Container,
    container_id: str,
    command: tuple[str, ...],
) -> None:
    hook = (
        f"Exec lifecycle hook ([{' '.join(command)}]) for Container "
        f'"{container.name}" in Pod "{pod_full_name(pod)}" failed'
    )
    try:
        result = await client.exec_sync(container_id, command, timeout_seconds=0)
    except RpcError as error:
        raise HookError(f'{hook} - error: {error.message}, message: ""') from error
    if result.exit_code != 0:
        output = (result.stdout + result.stderr).decode(errors="replace")[:MESSAGE_LIMIT]
        raise HookError(
            f"{hook} - error: command '{' '.join(command)}' exited with {result.exit_code}: "
            f', message: "{output}"'
        )


async def _get(pod: Pod, container: Container, handler: LifecycleHandler, pod_ip: str) -> None:
    action = handler.http_get
    assert action is not None, "the caller has looked"
    port = _port(container, action.port.value)
    host = action.host or pod_ip
    address = f"[{host}]" if ":" in host else host
    path = action.path if action.path.startswith("/") else f"/{action.path}"
    url = f"{(action.scheme or 'HTTP').lower()}://{address}:{port}{path}"
    headers = [(header.name, header.value) for header in action.http_headers]
    try:
        # The kubelet never verifies the certificate of a workload it probes or notifies.
        async with (
            httpx.AsyncClient(verify=False, timeout=HTTP_TIMEOUT_SECONDS) as client,  # noqa: S501
            client.stream("GET", url, headers=headers) as response,
        ):
            status = response.status_code
            is_refused = status >= httpx.codes.BAD_REQUEST
            body = await _short_body(response) if is_refused else ""
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:  # ValueError: odd headers
        raise HookError(
            f'HTTP lifecycle hook ({path}) for Container "{container.name}" in Pod '
            f'"{pod_full_name(pod)}" failed - error: {error}, message: ""'
        ) from error
    if is_refused:
        raise HookError(
            f'HTTP lifecycle hook ({path}) for Container "{container.name}" in Pod '
            f'"{pod_full_name(pod)}" failed - error: status {status}, message: "{body}"'
        )


async def _short_body(response: httpx.Response) -> str:
    """The body of an answer that says itself that it is short; how long it is, a container decides.

    A body of unknown length may never end, and is left alone.
    """
    length = response.headers.get("content-length", "")
    if not _SHORT_NUMBER.fullmatch(length) or int(length) > BODY_LIMIT_BYTES:
        return ""
    return (await response.aread()).decode(errors="replace")[:MESSAGE_LIMIT]


def _port(container: Container, port: int | str) -> int:
    """The number of a port, which may be given by its name."""
    if isinstance(port, int):
        return port
    for declared in container.ports:
        if declared.name == port:
            return declared.container_port
    if _SHORT_NUMBER.fullmatch(port):
        return int(port)
    raise HookError(f"couldn't find port: {port}")
