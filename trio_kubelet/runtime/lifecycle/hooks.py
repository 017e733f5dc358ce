"""Lifecycle hooks: what a container runs after its start and before its stop.

A hook may run long: it is never shielded, and a stop bounds it by the grace period. One over HTTP
asks as a probe does, and whatever is answered is fine. One over HTTPS that is answered in plain
HTTP asks again over HTTP, as older kubelets did at once. (API: Container.lifecycle; exec, httpGet,
sleep, and tcpSocket, which has never been supported: such a hook fails, as on the Go kubelet.)
"""

from contextlib import suppress

import trio
from attrs import evolve, field, frozen

from trio_kubelet.k8s import Container, HTTPGetAction, LifecycleHandler, Pod
from trio_kubelet.pod_clients.dial import Dialer, host_port
from trio_kubelet.pod_clients.http import PLAIN_ANSWER, HttpProber
from trio_kubelet.pod_clients.http_messages import (
    HttpError,
    HttpRequest,
    RedirectError,
    http_request,
)
from trio_kubelet.pod_clients.result import ProbeError, user_agent
from trio_kubelet.pod_clients.share import RUN_SECONDS, ProbeShares
from trio_kubelet.rpc import FieldCut, RpcError, rpc_words
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.config.expansion import shown_command
from trio_kubelet.runtime.config.names import pod_full_name
from trio_kubelet.tasks.callbacks import Callbacks
from trio_kubelet.telemetry import EventRecorder, EventType

MESSAGE_LIMIT = 1024
USER_AGENT = user_agent("kube-lifecycle")
_FALLBACK = "request to HTTPS lifecycle hook {} got HTTP response, retry with HTTP succeeded"


@frozen
class HookError(Exception):
    """A hook failed. `message` is what the container's waiting state shows."""

    message: str

    def __str__(self) -> str:
        return self.message


@frozen(kw_only=True)
class Hooks:
    """Runs the hooks of all containers. Holds no state of any of them.

    `shares` are those of the pods' probes, too.
    `on_sleep_cut_short` is called when a sleep is cancelled: the pod's grace period is over,
    `on_http_fallback` when a hook over HTTPS was answered in plain HTTP.
    """

    client: RuntimeClient
    recorder: EventRecorder
    shares: ProbeShares
    on_sleep_cut_short: Callbacks[[]] = field(factory=Callbacks)
    on_http_fallback: Callbacks[[]] = field(factory=Callbacks)
    http: HttpProber = field(factory=lambda: HttpProber(Dialer()))

    async def run(
        self,
        pod: Pod,
        container: Container,
        container_id: str,
        handler: LifecycleHandler,
        pod_ip: str,
    ) -> None:
        """Run a hook to its end. Raises HookError if it fails."""
        if handler.exec is not None:
            await self._run_command(pod, container, container_id, handler.exec.command)
        elif handler.http_get is not None:
            await self._get(pod, container, handler.http_get, pod_ip)
        elif handler.sleep is not None:
            await self._sleep(handler.sleep.seconds)
        else:
            what = "none of exec, httpGet and sleep is set"
            raise HookError(f"Cannot run handler: invalid handler: {what}")

    async def _sleep(self, seconds: float) -> None:
        try:
            await trio.sleep(seconds)
        except trio.Cancelled:
            self.on_sleep_cut_short.call()
            raise

    async def _run_command(
        self, pod: Pod, container: Container, container_id: str, command: tuple[str, ...]
    ) -> None:
        shown = shown_command(command)
        hook = (
            f"Exec lifecycle hook ([{shown}]) for Container "
            f'"{container.name}" in Pod "{pod_full_name(pod)}" failed'
        )
        try:
            cut = FieldCut(4 * MESSAGE_LIMIT)
            result = await self.client.exec_sync(container_id, command, timeout_seconds=0, cut=cut)
        except RpcError as error:
            words = rpc_words(error.code, error.message)
            raise HookError(f'{hook} - error: {words}, message: ""') from error
        if result.exit_code != 0:
            printed = (result.stdout + result.stderr)[: 4 * MESSAGE_LIMIT]
            output = printed.decode(errors="replace")[:MESSAGE_LIMIT]
            raise HookError(
                f"{hook} - error: command '{shown}' exited with {result.exit_code}: "
                f', message: "{output}"'
            )

    async def _get(
        self, pod: Pod, container: Container, action: HTTPGetAction, pod_ip: str
    ) -> None:
        try:
            request = http_request(action, container, pod_ip, USER_AGENT)
            try:
                await self._ask(pod, request)
            except HttpError as error:
                if request.scheme != "https" or str(error) != PLAIN_ANSWER:
                    raise HttpError(f'Get "{request.url}": {error}') from error
                await self._get_plainly(pod, request, error)
        except (HttpError, RedirectError, ProbeError) as error:
            raise HookError(
                f'HTTP lifecycle hook ({action.path}) for Container "{container.name}" in Pod '
                f'"{pod_full_name(pod)}" failed - error: {error}'
            ) from error

    async def _ask(self, pod: Pod, request: HttpRequest) -> None:
        """Wait for an answer; how its body ends does not matter.

        A pod whose probes have used up its share sends its hooks all the same: a grace period goes
        on.
        """
        share = self.shares.of(pod.metadata.uid, pod.metadata.namespace)
        share.use(RUN_SECONDS)
        with suppress(ProbeError):
            await self.http.ask(request, share)

    async def _get_plainly(self, pod: Pod, request: HttpRequest, first: HttpError) -> None:
        """Ask again over HTTP, without what only the other end of TLS may see."""
        headers = tuple(each for each in request.headers if each[0] != "Authorization")
        try:
            await self._ask(pod, evolve(request, scheme="http", headers=headers))
        except HttpError as error:
            raise HttpError(f'Get "{request.url}": {first}') from error
        where = host_port(request.host, request.port)
        message = _FALLBACK.format(where)
        self.recorder.pod(pod, EventType.WARNING, "LifecycleHTTPFallback", message)
        self.on_http_fallback.call()
