"""The pods socket: components of the node ask which pods there are, and watch them (KEP-4188).

Answers are what the agent knows now, whether the API server was told of it or not, of static pods
under their own UIDs. Nothing is told before all sources have told of their pods. Only root may
open the socket: specs of pods may hold what others are not to know.
"""

from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import TypeVar

import trio

from trio_kubelet.k8s import Pod
from trio_kubelet.k8s.client.rate_limit import RateLimit, TokenBucket
from trio_kubelet.k8s.protobuf import encode_protobuf
from trio_kubelet.ports.pod_events import PodEvents
from trio_kubelet.ports.root_socket import serve_root
from trio_kubelet.rpc import Code, RpcError, ServerLimits
from trio_kubelet.rpc.stubs import v1alpha1 as wire
from trio_kubelet.tasks.threads import run_in_thread

T = TypeVar("T")

SOCKET = "pods-api.sock"
RATE = RateLimit(qps=100.0, burst=10)
"""Of lists and single pods; that of the Go kubelet of Kubernetes 1.37."""
MAX_WAITING = 10
"""Calls that wait for the thread which encodes answers: a list of 250 pods takes 0.3 s of it."""
CALLS = 4
"""Of one connection at once: each event is sent to each watch by itself."""
MAX_LIST_BYTES = 8 * 1024 * 1024
"""Clients in Go take 4 MiB in one message, if they are not told otherwise."""
MAX_SHOWN = 256


class PodsApi:
    """The service Pods, v1alpha1.

    `pods` returns the pods of all sources with their newest statuses, `pod` finds one by its UID.
    """

    def __init__(
        self,
        folder: Path,
        events: PodEvents,
        pods: Callable[[], Iterable[Pod]],
        pod: Callable[[str], Pod | None],
        sources_known: trio.Event,
    ) -> None:
        self.events = events
        self._path = folder / SOCKET
        self._pods = pods
        self._pod = pod
        self._sources_known = sources_known
        self._bucket = TokenBucket.of(RATE, 0.0)
        self._limiter = trio.CapacityLimiter(1)

    async def run(self) -> None:
        """Serve the socket, and tell those who watch of changes, until cancelled."""
        limits = ServerLimits(calls=CALLS)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.events.run)
            await serve_root(self, self._path, wire.PodsBase, limits, what="pods")

    async def list_pods(self, _: wire.ListPodsRequest) -> wire.ListPodsResponse:
        """Tell of all pods. Raises RpcError."""
        self._admit()
        return wire.ListPodsResponse(pods=await self._encoded(_encoded_list, tuple(self._pods())))

    async def get_pod(self, request: wire.GetPodRequest) -> wire.GetPodResponse:
        """Tell of one pod. Raises RpcError."""
        self._admit()
        pod = self._pod(request.pod_uid)
        if pod is None:
            words = f"no pod with UID {request.pod_uid[:MAX_SHOWN]!r}"
            raise RpcError(Code.NOT_FOUND, words)
        return wire.GetPodResponse(pod=await self._encoded(encode_protobuf, pod))

    def watch_pods(self, _: wire.WatchPodsRequest) -> AsyncIterator[wire.WatchPodsEvent]:
        """Tell of all pods, then of what becomes of them. Raises RpcError."""
        self._check_sources()
        return self.events.watch()

    def _admit(self) -> None:
        """Raise RpcError for a call that comes too early or too fast."""
        self._check_sources()
        is_full = self._limiter.statistics().tasks_waiting >= MAX_WAITING
        if is_full or self._bucket.take(trio.current_time()) > 0:
            if not is_full:
                self._bucket.give_back()
            raise RpcError(Code.RESOURCE_EXHAUSTED, "rejected by rate limit")

    def _check_sources(self) -> None:
        if not self._sources_known.is_set():
            words = "not all sources have told of their pods yet"
            raise RpcError(Code.FAILED_PRECONDITION, words)

    async def _encoded(self, encode: Callable[..., T], value: object) -> T:
        """Encode in a thread, one answer at a time: a pod takes up to a millisecond, or more."""
        return await run_in_thread(encode, value, limiter=self._limiter)


def _encoded_list(pods: Iterable[Pod]) -> list[bytes]:
    """Encode pods one by one. Raises RpcError if they are too much for one answer."""
    encoded, size = list[bytes](), 0
    for pod in pods:
        encoded.append(encode_protobuf(pod))
        size += len(encoded[-1])
        if size > MAX_LIST_BYTES:
            words = f"the pods have more than {MAX_LIST_BYTES} bytes: watch them instead"
            raise RpcError(Code.RESOURCE_EXHAUSTED, words)
    return encoded
