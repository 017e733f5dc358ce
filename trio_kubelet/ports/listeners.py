"""The agent's own socket, the health port, the read-only port."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import trio
from attrs import frozen

from trio_kubelet import AGENT_SOCKET
from trio_kubelet.config.settings import Settings
from trio_kubelet.debugging import LoopMeter, turn_routes
from trio_kubelet.errors import StartError
from trio_kubelet.k8s import Pod
from trio_kubelet.server import (
    AnswerWriters,
    Route,
    healthz_routes,
    journal_routes,
    listen_tcp,
    listen_unix,
    pod_routes,
    route_requests,
    serve_http,
)
from trio_kubelet.sync.monitor import LoopMonitor
from trio_kubelet.telemetry import Journal
from trio_kubelet.telemetry.log import log_health

LOOP_STUCK_SECONDS = 30.0


@frozen(kw_only=True)
class Listeners:
    """Steps of a start: each serves until it is cancelled, and raises StartError if it cannot.

    `pods` are those of the sources, with their statuses; `monitoring` are statistics and metrics,
    `of_operators` what only who may use the agent's own socket is told.
    """

    settings: Settings
    journal: Journal
    loop_meter: LoopMeter
    monitor: LoopMonitor
    writers: AnswerWriters
    pods: Callable[[], Iterable[Pod]]
    monitoring: Sequence[Route] = ()
    of_operators: Sequence[Route] = ()

    async def serve_health(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve the port for health alone, where it is set."""
        configuration = self.settings.configuration
        if not configuration.healthz_port:
            task_status.started()
            return
        address = configuration.healthz_bind_address
        listeners = await listening(address, configuration.healthz_port, "healthzPort")
        await serve_http(listeners, route_requests(self._health_routes()), task_status=task_status)

    async def serve_pods(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve the agent's own socket, always, and the read-only port where it is set.

        The port asks nobody who he is, so it has the public routes alone.
        """
        configuration = self.settings.configuration
        shared = self.shared_routes()
        own_routes = (
            *shared,
            *journal_routes(self.journal, self.writers),
            *turn_routes(self.loop_meter),
            *self.of_operators,
        )
        socket = Path(self.settings.options.root_dir, AGENT_SOCKET)
        try:
            own = listen_unix(socket)
        except OSError as error:
            raise StartError(
                f"{socket}: {error.strerror}; if it is another agent, end that one, or choose "
                "another --root-dir"
            ) from error
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_http, own, route_requests(own_routes))
            if configuration.read_only_port:
                listeners = await listening(
                    configuration.address, configuration.read_only_port, "readOnlyPort"
                )
                public = [route for route in shared if route.is_public]
                await nursery.start(serve_http, listeners, route_requests(public))
            task_status.started()

    def shared_routes(self) -> Sequence[Route]:
        """The routes that the agent's own socket and the port for others have alike."""
        return (*pod_routes(self.pods, self.writers), *self._health_routes(), *self.monitoring)

    def _health_routes(self) -> Sequence[Route]:
        checks = {"ping": lambda: "", "log": log_health, "syncloop": self.loop_health}
        return healthz_routes(checks)

    def loop_health(self) -> str:
        """The problem that keeps the sync loop from getting on, empty if there is none."""
        consumer, seconds = self.monitor.slowest()
        return f"{consumer} stuck for {seconds:.0f} s" if seconds > LOOP_STUCK_SECONDS else ""


async def listening(address: str, port: int, setting: str) -> Sequence[trio.SocketListener]:
    """Listen on a port that a setting names. Raises StartError."""
    try:
        return await listen_tcp(address, port)
    except OSError as error:
        raise StartError(
            f"{setting}: cannot listen on {address}:{port}: {error.strerror}; "
            "choose another port, or 0 for none"
        ) from error
