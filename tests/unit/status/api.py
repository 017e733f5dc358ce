"""An API server of one namespace in a few lines: pods, status patches, and faults by script."""

from collections.abc import Callable, Mapping
from typing import Any

import trio
from attrs import evolve

from tests.apiserver.patches import strategic_merge
from trio_kubelet.k8s import ObjectMeta, Pod, PodStatus, Time
from trio_kubelet.k8s.client import ApiError
from trio_kubelet.k8s.codec import decode, encode

UNREACHABLE = ApiError(0, "Unreachable", "connection refused")

Fault = ApiError | float | str
"""An error in place of an answer; seconds that the answer takes; "lost" for an answer that is."""


def patched(status: PodStatus, patch: Mapping[str, Any]) -> PodStatus:
    """The status after a strategic merge patch of it."""
    merged = strategic_merge("Pod", {"status": encode(status)}, {"status": patch})
    return decode(PodStatus, merged["status"])


class PodsApi:
    """Pods by name. `faults` are used up one a request; `log` has the requests that arrived.

    `on_change` hears of each new version, and of a removal with None, as a watch would tell.
    """

    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self.faults: list[Fault] = []
        self.log: list[str] = []
        self.patches: list[tuple[str, Mapping[str, Any]]] = []
        self.on_change: Callable[[str, Pod | None], None] = lambda name, pod: None
        self.take: Callable[[PodStatus], PodStatus] = lambda status: status
        self.in_flight = 0
        self.most_in_flight = 0
        self._version = 100

    def put(self, pod: Pod) -> Pod:
        """Store a pod as the newest version of its name."""
        self._version += 1
        version = str(self._version)
        stored = evolve(pod, metadata=evolve(pod.metadata, resource_version=version))
        self.pods[pod.metadata.name] = stored
        self.on_change(pod.metadata.name, stored)
        return stored

    def mark_deleted(self, name: str) -> Pod:
        """Ask for the graceful deletion of a pod."""
        pod = self.pods[name]
        meta = evolve(pod.metadata, deletion_timestamp=Time.from_ns(0))
        return self.put(evolve(pod, metadata=meta))

    def remove(self, name: str) -> None:
        """Take a pod away, as a forced deletion does."""
        del self.pods[name]
        self.on_change(name, None)

    async def get(self, kind: object, name: str, namespace: str = "", **_: object) -> Any:
        return await self._do(f"get {name}", lambda: self._named(name))

    async def create(self, kind: object, obj: Any, namespace: str = "", **_: object) -> Any:
        def act() -> Pod:
            if obj.metadata.name in self.pods:
                raise ApiError(409, "AlreadyExists", "it is there already")
            made = evolve(obj.metadata, uid=f"api-{self._version}", creation_timestamp=None)
            return self.put(evolve(obj, metadata=made))

        return await self._do(f"create {obj.metadata.name}", act)

    async def patch(
        self,
        kind: object,
        name: str,
        namespace: str = "",
        *,
        body: Mapping[str, Any],
        subresource: str = "",
        **_: object,
    ) -> Any:
        def act() -> Pod:
            pod = self._named(name)
            if body["metadata"]["uid"] != pod.metadata.uid:
                raise ApiError(409, "Conflict", "Precondition failed: UID in precondition")
            self.patches.append((name, body["status"]))
            status = self.take(patched(pod.status, body["status"]))
            return pod if status == pod.status else self.put(evolve(pod, status=status))

        return await self._do(f"patch {name} {subresource}", act)

    async def delete(
        self,
        kind: object,
        name: str,
        namespace: str = "",
        *,
        grace_seconds: int | None = None,
        uid: str = "",
        **_: object,
    ) -> None:
        def act() -> None:
            pod = self._named(name)
            if uid != pod.metadata.uid:
                raise ApiError(409, "Conflict", "Precondition failed: UID in precondition")
            if not pod.metadata.finalizers:
                self.remove(name)

        await self._do(f"delete {name} {grace_seconds}", act)

    def _named(self, name: str) -> Pod:
        if name not in self.pods:
            raise ApiError(404, "NotFound", f'pods "{name}" not found')
        return self.pods[name]

    async def _do(self, what: str, act: Callable[[], Any]) -> Any:
        fault = self.faults.pop(0) if self.faults else 0.0
        self.log.append(what)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            if isinstance(fault, ApiError):
                await trio.lowlevel.checkpoint()
                raise fault
            await trio.sleep(fault if isinstance(fault, float) else 0)
            answer = act()
            if fault == "lost":
                raise UNREACHABLE
            return answer
        finally:
            self.in_flight -= 1


def a_named_pod(name: str, uid: str = "", **metadata: Any) -> Pod:
    return Pod(metadata=ObjectMeta(name=name, namespace="n", uid=uid or f"uid-{name}", **metadata))
