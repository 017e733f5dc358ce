"""Pods of a node as its cluster sees them: when each became Ready, and when it was gone.

One watch, read in a thread of its own; what is measured is what a user of the API would see.
"""

import threading
import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.manifests import manifest
from lab import LabError
from lab.cluster_api import AwayError, ClusterApi, Json

PODS = "/api/v1/namespaces/default/pods"
EVENTS = "/api/v1/namespaces/default/events"
CREATORS = 8
DEADLINE_SECONDS = 180.0


class WatchedPods:
    """Makes and deletes pods that are bound to a node, and tells when. A context manager.

    Times are those of `time.monotonic`.
    """

    def __init__(self, api: ClusterApi, node: str) -> None:
        self._api = api
        self._node = node
        self._changed = threading.Condition()
        self._ready: dict[str, float] = {}
        self._gone: dict[str, float] = {}
        self._told: dict[str, float] = {}
        self._open = threading.Barrier(3, timeout=DEADLINE_SECONDS)
        self._threads = [
            threading.Thread(target=watch, daemon=True)
            for watch in (self._watch_pods, self._watch_events)
        ]
        self._creators = ThreadPoolExecutor(CREATORS)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        try:
            self._open.wait()
        except threading.BrokenBarrierError as error:
            raise LabError("the watches of the benchmark did not open") from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._creators.shutdown(cancel_futures=True)

    def create(self, names: Collection[str], *, probe: Json | None = None) -> float:
        """Create pods, some at a time; when the first request left."""
        return self.create_from([manifest(name, probe=probe) for name in names])

    def create_from(self, manifests: Iterable[Json]) -> float:
        """As `create`, of manifests, whose namespace and node are set."""
        bodies = [self._bound(each) for each in manifests]
        began_at = time.monotonic()
        for made in [self._creators.submit(self._api.create, PODS, body) for body in bodies]:
            made.result()
        return began_at

    def delete(self, names: Collection[str]) -> float:
        """Delete pods with the grace of their own; when the first request left."""
        began_at = time.monotonic()
        for gone in [self._creators.submit(self._api.delete, f"{PODS}/{n}") for n in names]:
            gone.result()
        return began_at

    def wait_ready(self, names: Collection[str]) -> Mapping[str, float]:
        """When each of these became Ready. Raises LabError."""
        return self._wait(self._ready, names, "Ready")

    def wait_told(self, names: Collection[str]) -> Mapping[str, float]:
        """When the event came that each of these was started, the last of a start. LabError."""
        return self._wait(self._told, names, "told of")

    def wait_gone(self, names: Collection[str]) -> Mapping[str, float]:
        """When each of these was gone. Raises LabError."""
        return self._wait(self._gone, names, "gone")

    def _bound(self, body: Json) -> Json:
        body["metadata"]["namespace"] = "default"
        body["spec"]["nodeName"] = self._node
        return body

    def _wait(
        self, seen: Mapping[str, float], names: Collection[str], what: str
    ) -> Mapping[str, float]:
        with self._changed:
            if not self._changed.wait_for(lambda: seen.keys() >= set(names), DEADLINE_SECONDS):
                missing = len(set(names) - seen.keys())
                raise LabError(f"{missing} of {len(names)} pods did not become {what}")
            return {name: seen[name] for name in names}

    def _watch_events(self) -> None:
        with (
            suppress(AwayError),
            self._api.watch(
                EVENTS, deadline_seconds=3600.0, fieldSelector="reason=Started"
            ) as seen,
        ):
            self._open.wait()
            for event in seen:
                with self._changed:
                    self._told.setdefault(
                        event["object"]["involvedObject"]["name"], time.monotonic()
                    )
                    self._changed.notify_all()

    def _watch_pods(self) -> None:
        selector = f"spec.nodeName={self._node}"
        with (
            suppress(AwayError),  # the control plane was stopped: the end of the benchmark
            self._api.watch(PODS, deadline_seconds=3600.0, fieldSelector=selector) as events,
        ):
            self._open.wait()
            for event in events:
                self._take(event, time.monotonic())

    def _take(self, event: Json, now: float) -> None:
        pod = event["object"]
        name = pod["metadata"]["name"]
        with self._changed:
            if event["type"] == "DELETED":
                self._gone.setdefault(name, now)
            elif _is_ready(pod):
                self._ready.setdefault(name, now)
            self._changed.notify_all()


def _is_ready(pod: Json) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def kubeconfig_flags(kubeconfig: Path, node: str) -> tuple[str, ...]:
    """The flags that make a node of this name."""
    return ("--kubeconfig", str(kubeconfig), "--hostname-override", node)
