"""`/containerLogs/<namespace>/<pod>/<container>`: what `kubectl logs` comes to on the node."""

from collections.abc import Callable, Sequence

import structlog
from attrs import frozen

from trio_kubelet.k8s import Pod
from trio_kubelet.logs.files import LogPlace, NoLogError, place_of
from trio_kubelet.logs.options import container_id, is_in_spec, log_options
from trio_kubelet.logs.reader import LogReader
from trio_kubelet.runtime.observed import ObservedContainer, ObservedPod, ObservedState
from trio_kubelet.server.messages import Request, RequestError, Response
from trio_kubelet.server.router import ADMIN, Route
from trio_kubelet.tasks.clock import Clock

log = structlog.get_logger("logs")


@frozen(kw_only=True)
class ContainerLogs:
    """Answers requests for logs.

    `find_pod` gives a pod by namespace and name, with its newest status; `observed` what was last
    seen of it in the runtime, by UID. Logs are below `root` (podLogsDir). `streams` is the gate
    PodLogsQuerySplitStreams.
    """

    find_pod: Callable[[str, str], Pod | None]
    observed: Callable[[str], ObservedPod]
    root: str
    reader: LogReader
    clock: Clock
    streams: bool = False

    async def answer(self, request: Request) -> Response:
        """The log as a stream. Raises RequestError with the Go kubelet's words."""
        options = log_options(request.query, self.clock.now_ns(), streams=self.streams)
        pod = self._pod(request)
        full_id = container_id(pod, request.parameters["container"], previous=options.previous)
        uid, id_ = pod.metadata.uid, full_id.partition("://")[2]
        place = self._place(self._container(uid, id_), full_id)

        def has_ended() -> bool:
            found = self._container(uid, id_)
            return found is None or found.state is not ObservedState.RUNNING

        if options.follow:
            request.will_last()
        body = self.reader.read(place, options, pod.metadata, has_ended)
        try:
            await anext(body)
        except OSError as error:
            raise RequestError(400, _words(place, error)) from error
        return Response(body=body)

    def _pod(self, request: Request) -> Pod:
        names = request.parameters
        pod = self.find_pod(names["namespace"], names["pod"])
        if pod is None:
            raise RequestError(404, f'pod "{names["pod"]}" does not exist')
        if not is_in_spec(pod, names["container"]):
            words = f'container "{names["container"]}" not found in pod "{names["pod"]}"'
            raise RequestError(404, words)
        return pod

    def _container(self, uid: str, id_: str) -> ObservedContainer | None:
        return next((each for each in self.observed(uid).containers if each.id == id_), None)

    def _place(self, container: ObservedContainer | None, full_id: str) -> LogPlace:
        words = f"unable to retrieve container logs for {full_id}"
        if container is None:
            raise RequestError(400, words)
        try:
            return place_of(container.log_path, self.root)
        except NoLogError as error:
            log.warning(
                "container log is outside podLogsDir", container=container.id, path=str(error)
            )
            raise RequestError(400, words) from error


def log_routes(logs: ContainerLogs) -> Sequence[Route]:
    """The one route."""
    return (Route("GET", "/containerLogs/{namespace}/{pod}/{container}", logs.answer, ADMIN),)


def _words(place: LogPlace, error: OSError) -> str:
    why = (error.strerror or "").lower()
    if isinstance(error, FileNotFoundError):
        path = place.path
        return f'failed to try resolving symlinks in path "{path}": lstat {path}: {why}'
    return f'failed to open log file "{place.path}": {why}'
